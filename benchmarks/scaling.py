"""What grows: the number of subscriptions, of their subscribers, and of the values that one subject has had."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks import paper
from benchmarks import street_lighting as street
from benchmarks.effort import Effort
from benchmarks.measuring import (
    CHUNK,
    EngineSide,
    LogFile,
    Progress,
    RawSide,
    cost_of,
    race,
    resident_mb,
    serialise,
    target,
)
from benchmarks.profiles import VALUES, loaded_engine
from lamplighter.engine import Engine

BATCH = 500

UpdateProfile = Callable[[str], list[str]]
"""The updates of an experiment that set a given value."""


# --- number of subscriptions ------------------------------------------------------------------------


def fine_subscription(number: int) -> str:
    """Subscription 0, 1, 2, ...: lamp by lamp over all roads; beyond the last post, lamps that are not built yet."""
    return street.lamp_subscription(number % 310 + 1, number // 310 + 1)


def coarse_subscription(number: int) -> str:
    """Subscription 0, 1, 2, ...: road by road; beyond the last road, roads that are not built yet."""
    return street.road_subscription(number + 1)


def fine(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """LAMP updates with more and more fine-grain subscriptions; each update notifies one subscriber."""
    result = _grow("fine", fine_subscription, effort.fine, {"LAMP": street.lamp_profile}, effort, out, progress)
    result["targets"] = _growth_targets("fine", result, 1_000_000)
    return result


def coarse(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """LAMP and ROAD updates with more and more coarse-grain subscriptions; each update notifies one subscriber."""
    profiles: dict[str, UpdateProfile] = {"LAMP": street.lamp_profile, "ROAD": street.road_iri_profile}
    result = _grow("coarse", coarse_subscription, effort.coarse, profiles, effort, out, progress)
    result["targets"] = _growth_targets("coarse", result, 100_000)
    return result


def _growth_targets(grain: str, result: dict[str, Any], wanted: int) -> list[dict[str, Any]]:
    last = result["sizes"][-1]
    name = f"{last['subscriptions']:,} {grain} subscriptions"
    if last["subscriptions"] != wanted:
        name += f" (instead of {wanted:,})"
    limits = [
        target(f"{name}: {profile} cost relative to {result['base']:,}", last["relative"][profile], 1.2)
        for profile in last["relative"]
    ]
    if last["bytes each"] is not None:
        limits.append(target(f"{name}: memory of each", last["bytes each"], 300, " B"))
    return limits


def _grow(
    grain: str,
    text_of: Callable[[int], str],
    sizes: Sequence[int],
    profiles: Mapping[str, UpdateProfile],
    effort: Effort,
    out: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Memory and rate of subscribing, then one engine that keeps the first of the sizes beside one that grows.

    The second two and a raw store run the same updates in turns. The memory of a subscription is the growth of a
    process that only subscribes, so it has all in it that a subscription makes the engine keep; it is counted from
    the first size on, when shapes and caches are there.
    """
    knowledge_base = street.document(bare=effort.bare)
    base = sizes[0]
    result: dict[str, Any] = {"base": base, "sizes": []}

    def engine_at_base() -> Engine:
        return loaded_engine(knowledge_base, [text_of(number) for number in range(base)])

    growing = engine_at_base()
    at_base = resident_mb()
    for have, size in pairwise((base, *sizes)):
        rate = result["sizes"][-1]["subscribes/s"] if len(result["sizes"]) > 1 else None
        if rate and (size - have) / rate > effort.budget_s:
            progress(f"{size:,} left out: at {rate:,.0f} subscribes/s it would take {(size - have) / rate:,.0f} s")
            break
        step: dict[str, Any] = {"subscriptions": size, "us": {}, "raw us": {}, "relative": {}}
        seconds = _subscribe(growing, text_of, have, size)
        step["subscribes/s"] = (size - have) / seconds if size > have else None
        step["bytes each"] = (resident_mb() - at_base) * 1e6 / (size - base) if size > have else None
        result["sizes"].append(step)
        progress(f"{size:,} subscriptions made")
    growing.close()
    del growing

    still, growing = engine_at_base(), engine_at_base()
    logs = [LogFile(out / f"{grain}-still.log"), LogFile(out / f"{grain}-growing.log")]
    sides = {"still": EngineSide(still, logs[0]), "growing": EngineSide(growing, logs[1])}
    have = base
    for step in result["sizes"]:
        _subscribe(growing, text_of, have, step["subscriptions"])
        have = step["subscriptions"]
        for name, updates_of in profiles.items():
            _compare(sides, knowledge_base, name, updates_of, step, effort.scaling)
        progress(
            f"{have:,}: "
            + ", ".join(
                f"{name} {step['us'][name]:.1f} us, {ratio:.2f} of that with {base:,}"
                for name, ratio in step["relative"].items()
            )
        )
    for log in logs:
        log.close()
    return result


def _subscribe(engine: Engine, text_of: Callable[[int], str], start: int, end: int) -> float:
    """Makes the subscriptions from start to end; the CPU time in seconds, without that for their texts."""
    seconds = 0.0
    for first in range(start, end, BATCH):
        texts = [text_of(number) for number in range(first, min(first + BATCH, end))]
        started = time.process_time()
        for text in texts:
            engine.subscribe(text)
        seconds += time.process_time() - started
    return seconds


def _compare(
    sides: dict[str, EngineSide],
    knowledge_base: bytes,
    name: str,
    updates_of: UpdateProfile,
    step: dict[str, Any],
    pairs: int,
) -> None:
    """Which engine comes first in a run changes with each, so runs are taken two by two."""
    n = len(updates_of(""))
    raw = RawSide(knowledge_base)
    costs: dict[str, list[float]] = {"still": [], "growing": [], "raw": []}
    for repetition in range(-2, 2 * pairs):
        texts = updates_of(VALUES[repetition % 2])
        notified = {who: side.notified for who, side in sides.items()}
        order = list(sides) if repetition % 2 else list(reversed(sides))
        spent = race({who: (sides[who], texts) for who in order})
        told = {who: side.notified - notified[who] for who, side in sides.items()}
        assert told["still"] == told["growing"], f"{name}: {told} notifications"
        # The raw store is only there for scale: as a third it would always run before the same one of the two.
        spent |= race({"raw": (raw, texts)})
        if repetition >= 0:  # those before warm up
            for who, cost in spent.items():
                costs[who].append(cost.cpu)
    step["us"][name] = median(costs["growing"]) / n * 1e6
    step["raw us"][name] = median(costs["raw"]) / n * 1e6
    step["relative"][name] = median(
        sum(costs["growing"][first : first + 2]) / sum(costs["still"][first : first + 2])
        for first in range(0, 2 * pairs, 2)
    )


# --- all hit (appendix B.F) -------------------------------------------------------------------------

ALL_HIT_ROAD = 301
"""The paper says U_ROAD(300) and 100 triples; by its own table 2 it is the roads from 301 on that have 100."""


def all_hit(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """Every subscriber has the same subscription and every update notifies all of them (LHR 100 %)."""
    knowledge_base = street.document(bare=effort.bare)
    experiments: tuple[tuple[str, str, Callable[[str], str], tuple[int, ...]], ...] = (
        ("lamp", street.lamp_subscription(1, 1), lambda value: street.lamp_update(1, 1, value), effort.all_hit_lamp),
        (
            "road",
            street.road_subscription(ALL_HIT_ROAD),
            lambda value: street.road_iri_update(ALL_HIT_ROAD, value),
            effort.all_hit_road,
        ),
    )
    result: dict[str, Any] = {}
    log = LogFile(out / "all-hit.log")
    for name, subscription, update_of, sizes in experiments:
        engine = loaded_engine(knowledge_base, ())
        side, raw = EngineSide(engine, log), RawSide(knowledge_base)
        rows = []
        for size in sizes:
            for _ in range(size - engine.subscription_count):
                engine.subscribe(subscription)
            updates = max(10, min(2 * CHUNK, 20_000 // size))
            costs = []
            for repetition in range(4):
                side.notified = 0
                # Two values in turns, so that each update is a change.
                texts = [update_of(VALUES[index % 2]) for index in range(2 * (updates // 2))]
                costs.append(race({"engine": (side, texts), "raw": (raw, texts)}))
                assert side.notified == size * len(texts), f"{name}: {side.notified} notifications"
                if repetition == 0:
                    costs.clear()  # the first one warms up
            each = median(cost["engine"].cpu for cost in costs) / len(texts)
            raw_each = median(cost["raw"].cpu for cost in costs) / len(texts)
            rows.append(
                {
                    "subscribers": size,
                    "Ups": 1 / each,
                    "notifications/s": size / each,
                    "paper notifications/s": paper.all_hit_notifications_per_second(name, size),
                    "E2E": each / raw_each - 1,
                }
            )
            progress(f"{name}, {size:,} subscribers: {size / each:,.0f} notifications/s")
        result[name] = rows
        engine.close()
    log.close()
    return result


# --- one hot subject --------------------------------------------------------------------------------


def hot(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """One lamp is given fresh values, one after the other, with the 1,004 subscriptions in place.

    Start and end are the means over a fifth of the values each, rebuilds and flushes included; the first window,
    which parses the shape, is in neither.
    """
    knowledge_base = street.document(bare=effort.bare)
    engine = loaded_engine(knowledge_base, [entry.text for entry in street.subscription_profile()])
    log = LogFile(out / "hot.log")
    side = EngineSide(engine, log)
    windows, memory, pause = [], [resident_mb()], 0.0
    values = iter(range(1_000, 1_000 + effort.hot_values))
    gc.collect()
    while texts := [street.lamp_update(1, 1, str(value)) for value in islice(values, effort.hot_window)]:
        started, longest = time.process_time(), 0.0
        for text in texts:
            moment = time.perf_counter()
            side.run((text,))
            longest = max(longest, time.perf_counter() - moment)
        spent = time.process_time() - started
        pause = max(pause, min(longest, spent))  # when the machine gave its time to others, that is no pause of ours
        windows.append(spent / len(texts) * 1e6)
        if len(windows) % 10 == 0:
            memory.append(resident_mb())
            progress(f"{len(windows) * effort.hot_window:,} values: {windows[-1]:.1f} us, {memory[-1]:.0f} MB")
    last = cost_of(side.finish)
    windows[-1] += last.cpu / effort.hot_window * 1e6
    log.close()
    fifth = max(1, len(windows) // 5)
    start, end = fmean(windows[1 : 1 + fifth]), fmean(windows[-fifth:])
    half = len(memory) // 2
    growth = max(memory[half:]) / max(memory[: half + 1])

    raw, raw_windows = RawSide(knowledge_base), []
    raw_values = iter(range(1_000, 1_000 + effort.hot_raw_values))
    while texts := [street.lamp_update(1, 1, str(value)) for value in islice(raw_values, effort.hot_window)]:
        raw_windows.append(cost_of(lambda texts=texts: raw.run(texts)).cpu / len(texts) * 1e6)  # type: ignore[misc]
    progress(f"raw store: {raw_windows[0]:.0f} us at first, {raw_windows[-1]:.0f} us after {effort.hot_raw_values:,}")
    count = f"hot subject, {effort.hot_values:,} fresh values"
    return {
        "values": effort.hot_values,
        "window": effort.hot_window,
        "us": windows,
        "raw us": raw_windows,
        "start us": start,
        "end us": end,
        "memory MB": memory,
        "longest update ms": pause * 1e3,
        "targets": [
            target(f"{count}: cost at the end / at the start", end / start, 1.2),
            target(f"{count}: peak memory, second half / first half", growth, 1.05),
            target(f"{count}: longest update", pause * 1e3, 50, " ms"),
        ],
    }


# --- latency ----------------------------------------------------------------------------------------


def latency(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """First results of a seen shape, and single updates that notify, with the 1,004 subscriptions in place (CPU)."""
    engine = loaded_engine(street.document(bare=effort.bare), [entry.text for entry in street.subscription_profile()])
    log = LogFile(out / "latency.log")
    result: dict[str, Any] = {"first results us": {}, "raw first results us": {}}
    lamps = [street.lamp_subscription(road, lamp) for road in range(210, 240) for lamp in range(1, 21)]
    result["first results us"]["S_LAMP"] = _first_results(engine, lamps)
    for _, roads, posts in street.ROAD_TYPES:
        texts = [street.road_subscription(road) for road in list(roads)[-10:]]
        result["first results us"][f"S_ROAD, {posts} lamps"] = _first_results(engine, texts)
    progress("first results of a seen shape")

    notifying = [road for road in street.ROADS if road in street.COARSE_ROADS or road % 100 in range(1, 8)]
    in_engine, with_json = [], []
    notifying = [road for road in notifying if engine.update(street.lamp_update(road, 1, "1")).notifications]
    assert len(notifying) == 23
    for repetition in range(effort.latency):
        gc.collect()
        for road in notifying:
            one, all_of_it, _ = _latency(engine, log, street.lamp_update(road, 1, VALUES[repetition % 2]))
            in_engine.append(one)
            with_json.append(all_of_it)
    result["notifying LAMP us"] = {"engine": median(in_engine), "with log and JSON": median(with_json)}
    progress("LAMP updates that notify")

    for name, road in (("one coarse notification", 308), ("100 fine notifications", 301)):
        costs = []
        for repetition in range(effort.latency):
            gc.collect()
            cost = _latency(engine, log, street.road_iri_update(road, VALUES[(repetition + 1) % 2]))
            if repetition:  # the first one warms up, and sets the value that the lamps have
                assert cost[2] == (1 if road == 308 else 100), f"{cost[2]} notifications"
                costs.append(cost)
        result[f"ROAD, 100 lamps, {name}, us"] = {
            "engine": median(cost[0] for cost in costs),
            "with log and JSON": median(cost[1] for cost in costs),
        }
        progress(f"ROAD updates with 100 lamps and {name}")
    log.close()
    coarse = result["ROAD, 100 lamps, one coarse notification, us"]["with log and JSON"]
    result["targets"] = [
        target("first results of a seen shape, S_LAMP", result["first results us"]["S_LAMP"], 50, " us"),
        target("notifying LAMP update, in the engine", result["notifying LAMP us"]["engine"], 60, " us"),
        target("notifying LAMP update, with log and JSON", result["notifying LAMP us"]["with log and JSON"], 60, " us"),
        target("ROAD with 100 rows, with log and JSON", coarse / 1000, 1, " ms"),
    ]
    return result


def _first_results(engine: Engine, texts: Sequence[str]) -> float:
    """Median CPU time of a subscribe whose shape is known, in us; the subscriptions end again."""
    gc.collect()
    costs, spuids = [], []
    for text in texts:
        started = time.process_time()
        subscription = engine.subscribe(text)
        costs.append(time.process_time() - started)
        assert len(subscription.first) > 0
        spuids.append(subscription.spuid)
    for spuid in spuids:
        engine.unsubscribe(spuid)
    return median(costs) * 1e6


def _latency(engine: Engine, log: LogFile, text: str) -> tuple[float, float, int]:
    """CPU time in us from the text to the notifications and to their JSON, and how many they are."""
    started = time.process_time()
    commit = engine.update(text)
    notified = time.process_time()
    log.append(commit)
    serialise(commit)
    sent = time.process_time()
    return (notified - started) * 1e6, (sent - started) * 1e6, len(commit.notifications)
