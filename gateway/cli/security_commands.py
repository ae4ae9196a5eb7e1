"""`lamplighter clients` and `lamplighter keys`: administration of clients and keys of the running gateway."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from shlex import quote as quoted
from typing import Any, get_args
from urllib.parse import quote

from lamplighter.engine.protocol import PriorityName
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.console import confirm, print_result, table
from lamplighter.gateway.cli.endpoint import add_reach_options, call_gateway
from lamplighter.gateway.cli.options import add_confirmation, add_mode

_KINDS = ("read", "write", "subscribe")


def add_security_commands(command: Adder) -> None:
    clients = command("clients", _list)
    modes = clients.add_subparsers(title="subcommands", metavar="SUBCOMMAND", required=True, dest="mode")
    listed = add_mode(modes, "list", "list registered and listed clients and their permissions", _list)
    listed.add_argument("--json", action="store_true", help="print the JSON of GET /clients")
    add = add_mode(modes, "add", "add a name to the list; one client may register under it", _add)
    _permissions(add)
    add.add_argument("--register", action="store_true", help="register the client now and print its secret")
    code = add_mode(modes, "code", "print a one-time registration code for a client", _code)
    _permissions(code)
    permit = add_mode(modes, "permit", "change the permissions of a client; those not given do not change", _permit)
    _permissions(permit)
    permit.add_argument("--no-operate", action="store_true", help="revoke the permission operate")
    remove = add_mode(modes, "remove", "remove a client: end its subscriptions and revoke its tokens", _remove)
    for parser in (add, code, permit, remove):
        parser.add_argument("name", help="client_identity of the client")

    keys = command("keys", _rotate)
    key_modes = keys.add_subparsers(title="subcommands", metavar="SUBCOMMAND", required=True, dest="mode")
    rotate = add_mode(key_modes, "rotate", "sign with a new key; existing tokens stay valid", _rotate)
    rotate.add_argument("--revoke", action="store_true", help="invalidate all existing tokens")
    for parser in (remove, rotate):
        add_confirmation(parser)
    for parser in (add, code, permit, remove, rotate):
        parser.add_argument("--json", action="store_true", help="print the gateway's answer as JSON")
    for parser in (listed, add, code, permit, remove, rotate):
        add_reach_options(parser)


def _permissions(parser: argparse.ArgumentParser) -> None:
    for kind in _KINDS:
        parser.add_argument(
            f"--{kind}",
            action="append",
            metavar="GRAPH",
            help=f"permission to {kind}: a graph IRI, default, * for all, or none; repeatable",
        )
    parser.add_argument("--operate", action="store_true", help="operator permission: state, backup, restore, clients")
    parser.add_argument(
        "--priority", choices=get_args(PriorityName), help="the highest class of its requests (default: normal)"
    )


def _ask(options: argparse.Namespace, method: str, path: str, members: dict[str, Any] | None = None) -> Any:
    """Raises UpstreamError, RefusedError."""
    content = None if members is None else json.dumps(members).encode()
    headers = {} if content is None else {"Content-Type": "application/json"}
    with call_gateway(options, method, path, content, headers) as answer:
        return json.load(answer)


def _list(options: argparse.Namespace) -> int:
    answer = _ask(options, "GET", "/clients")
    print_result(options, answer, _client_lines(answer["clients"]))
    return 0


def _client_lines(clients: list[dict[str, Any]]) -> Iterator[str]:
    rows = [("NAME", "STATE", "SINCE", "READ", "WRITE", "SUBSCRIBE", "OPERATE", "PRIORITY")]
    for client in clients:
        graphs = (" ".join(client[kind]) or "-" for kind in _KINDS)
        operate = "yes" if client["operate"] else "-"
        priority = client.get("priority", "-")  # a gateway of another version may not have it
        rows.append((client["name"], client["state"], client["since"][:19], *graphs, operate, priority))
    yield from table(rows).splitlines()


def _permission_options(options: argparse.Namespace) -> dict[str, list[str] | bool | str]:
    given: dict[str, list[str] | bool | str] = {}
    for kind in _KINDS:
        graphs = getattr(options, kind)
        if graphs is not None:
            given[kind] = [] if graphs == ["none"] else graphs
    if options.operate:
        given["operate"] = True
    if options.priority is not None:
        given["priority"] = options.priority
    return given


def _new(options: argparse.Namespace, how: str) -> Any:
    members: dict[str, Any] = {"name": options.name, "how": how}
    given = _permission_options(options)
    if given:
        members["permissions"] = given
    return _ask(options, "POST", "/clients", members)


def _add(options: argparse.Namespace) -> int:
    answer = _new(options, "register" if options.register else "list")
    if options.register:
        lines = [f"client_id      {answer['name']}", f"client_secret  {answer['client_secret']}"]
        lines.append("The secret is shown only once; the gateway does not store it.")
    elif answer["needs_code"]:
        code = f"lamplighter clients code {quoted(options.name)}"
        lines = [f"{options.name} is listed; it registers with a code: {code}"]
    else:
        lines = [f"{options.name} may now register once; the first client that asks under this name gets it"]
    print_result(options, answer, lines)
    return 0


def _code(options: argparse.Namespace) -> int:
    answer = _new(options, "code")
    lines = [
        f"{answer['code']}  for {answer['name']}, valid for {answer['life_s']} s",
        f"A client that cannot send a code registers as {answer['name']}#{answer['code']}",
    ]
    print_result(options, answer, lines)
    return 0


def _permit(options: argparse.Namespace) -> int:
    clients = _ask(options, "GET", "/clients")["clients"]
    before: dict[str, Any] = next((client for client in clients if client["name"] == options.name), {})
    kept = {kind: before.get(kind, []) for kind in _KINDS} | {"operate": before.get("operate", False)}
    kept |= {"priority": before["priority"]} if "priority" in before else {}
    if options.no_operate:
        kept["operate"] = False
    answer = _ask(options, "PUT", f"/clients/{quote(options.name, safe='')}", kept | _permission_options(options))
    changed = f"the permissions of {options.name} have changed; subscriptions that would see other graphs have ended"
    print_result(options, answer, changed)
    return 0


def _remove(options: argparse.Namespace) -> int:
    question = f"Remove the client {options.name}, with its secret, subscriptions and delayed updates?"
    if not confirm(question, yes=options.yes):
        return 1
    answer = _ask(options, "DELETE", f"/clients/{quote(options.name, safe='')}")
    line = f"{options.name} is removed; its tokens are refused, and its subscriptions have ended"
    print_result(options, answer, line)
    return 0


def _rotate(options: argparse.Namespace) -> int:
    if options.revoke and not confirm("Invalidate all existing tokens?", yes=options.yes):
        return 1
    answer = _ask(options, "POST", "/keys/rotate", {"revoke": options.revoke})
    lines = [f"new tokens are signed with the key {answer['kid']}"]
    if options.revoke:
        lines.append("all earlier tokens are refused; clients fetch new ones automatically")
    print_result(options, answer, lines)
    return 0
