// node-wot, told what to do by JSON lines on its input; tests/clients/peer.py is the other side.
"use strict";

const readline = require("node:readline");
const { Servient } = require("@node-wot/core");
const { HttpClientFactory, HttpsClientFactory } = require("@node-wot/binding-http");

const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);
const things = new Map();
const observed = new Map();

async function main() {
  const servient = new Servient();
  servient.addClientFactory(new HttpClientFactory());
  servient.addClientFactory(new HttpsClientFactory({ allowSelfSigned: false }));
  const wot = await servient.start();

  const calls = {
    async consume({ td, token }) {
      if (token !== undefined) servient.addCredentials({ [td.id]: { token } });
      things.set(td.id, await wot.consume(td));
      return null;
    },
    describe: ({ url }) => wot.requestThingDescription(url),
    async explore({ url }) {
      const found = [];
      for await (const td of await wot.exploreDirectory(url)) found.push(td);
      return found;
    },
    read: async ({ thing, name }) => (await things.get(thing).readProperty(name)).value(),
    async readSeveral({ thing, names }) {
      const found = {};
      for (const [name, output] of await things.get(thing).readMultipleProperties(names)) {
        found[name] = await output.value();
      }
      return found;
    },
    async write({ thing, name, value }) {
      await things.get(thing).writeProperty(name, value);
      return null;
    },
    async invoke({ thing, name, value }) {
      await things.get(thing).invokeAction(name, value);
      return null;
    },
    async observe({ thing, name, of }) {
      const told = async (output) => say({ of, event: "value", data: await output.value() });
      const failed = (error) => say({ of, event: "error", data: String(error) });
      observed.set(of, await things.get(thing).observeProperty(name, told, failed));
      return null;
    },
    async stop({ of }) {
      await observed.get(of).stop();
      return null;
    },
  };

  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { id, call, ...members } = JSON.parse(line);
    try {
      say({ id, result: (await calls[call](members)) ?? null });
    } catch (error) {
      say({ id, error: { message: String(error) } });
    }
  }
  process.exit(0);
}

main();
