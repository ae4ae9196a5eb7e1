// A radio for zigbee-herdsman that exists in this process only, loaded by `node --require` before Zigbee2MQTT.
//
// Standard input: a JSON line [network address, endpoint, cluster, attributes] is a report of a device, as it would
// arrive from the air. Standard output: a line "told ADDRESS CLUSTER COMMAND PAYLOAD" for each command to a device. Each
// command is acknowledged.
"use strict";

const { createRequire } = require("node:module");
const { createInterface } = require("node:readline");

const herdsman = createRequire(require.main?.filename ?? process.argv[1]);
const { Adapter } = herdsman("zigbee-herdsman/dist/adapter/adapter.js");
const Zcl = herdsman("zigbee-herdsman/dist/zspec/zcl/index.js");

class SimulatedRadio extends Adapter {
  async start() {
    const lines = createInterface({ input: process.stdin });
    lines.on("line", (line) => this.report(...JSON.parse(line)));
    return "resumed";
  }

  async stop() {}

  async getCoordinatorIEEE() {
    return "0x00124b0000000001";
  }

  async getCoordinatorVersion() {
    return { type: "simulated", meta: {} };
  }

  async supportsBackup() {
    return false;
  }

  async getNetworkParameters() {
    return { panID: 6754, extendedPanID: "0xdddddddddddddddd", channel: 11, nwkUpdateID: 0 };
  }

  async permitJoin() {}

  async sendZdo() {}

  async sendZclFrameToEndpoint(address, network, endpoint, frame) {
    console.log("told", address, frame.cluster.name, frame.command.name, JSON.stringify(frame.payload));
    const done = { cmdId: frame.command.ID, statusCode: 0 };
    const number = frame.header.transactionSequenceNumber;
    return this.message(network, endpoint, this.frame("defaultRsp", frame.cluster.ID, done, number));
  }

  async sendZclFrameToGroup() {}

  async sendZclFrameToAll() {}

  report(network, endpoint, cluster, attributes) {
    this.emit("zclPayload", this.message(network, endpoint, this.frame("report", cluster, attributes, 1)));
  }

  frame(command, cluster, payload, number) {
    const { FrameType, Direction, Frame } = Zcl;
    return Frame.create(FrameType.GLOBAL, Direction.SERVER_TO_CLIENT, true, undefined, number, command, cluster, payload, {});
  }

  message(network, endpoint, frame) {
    const data = frame.toBuffer();
    const header = Zcl.Header.fromBuffer(data);
    const to = { groupID: 0, wasBroadcast: false, destinationEndpoint: 1 };
    return { clusterID: frame.cluster.ID, address: network, header, data, endpoint, linkquality: 120, ...to };
  }
}

Adapter.create = async (...options) => new SimulatedRadio(...options);
