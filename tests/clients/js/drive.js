// Drives the published JavaScript client for the Python tests: a JSON object a line in, JSON objects a line out.
//
// In:  {"id", "call", ...}, the calls being the methods of `calls` below.
// Out: {"id", "result"} or {"id", "error": {"message", "status", "data"}} for a call, and {"event", "of", "data"} for
//      what the client emits for the subscription that was called `of`.
"use strict"
const fs = require("fs")
const readline = require("readline")
const { SEPA, Jsap, client } = require("@arces-wot/sepa-js")
const Secure = client.secure

const EVENTS = ["subscribed", "notification", "added", "removed", "unsubscribed", "error", "connection-error"]
const subscriptions = new Map()
let api, profile

function tell(message) {
  fs.writeSync(1, JSON.stringify(message) + "\n")
}

function followed(name, subscription) {
  for (const event of EVENTS) subscription.on(event, data => tell({ event, of: name, data }))
  subscriptions.set(name, subscription)
  return { alias: subscription.alias }
}

const calls = {
  async open({ config }) { api = new SEPA(config) },
  async register({ identity, config }) { api = await Secure.register(identity, config) },
  async login() { await api.login(); return { token: api.webToken } },
  async forge({ token }) { api.webToken.access_token = token },
  async query({ sparql, config }) { return api.query(sparql, config) },
  async update({ sparql, config }) { return api.update(sparql, config) },
  async subscribe({ name, sparql, config, alias }) { return followed(name, api.subscribe(sparql, config, alias)) },
  async unsubscribe({ name }) { subscriptions.get(name).unsubscribe() },
  async kill({ name }) { subscriptions.get(name).kill() },
  async profile({ document }) { profile = new Jsap(document) },
  async produce({ key, bindings }) { return profile[key](bindings) },
  async consume({ name, key, bindings }) { return followed(name, profile[key](bindings)) },
  async ask({ key, bindings }) { return profile[key].query(bindings) }
}

readline.createInterface({ input: process.stdin }).on("line", line => {
  const request = JSON.parse(line)
  calls[request.call](request).then(
    result => tell({ id: request.id, result: result === undefined ? null : result }),
    error => tell({
      id: request.id,
      error: {
        message: String(error && error.message || error),
        status: error && error.response ? error.response.status : null,
        data: error && error.response ? error.response.data : null
      }
    })
  )
}).on("close", () => process.exit(0))
