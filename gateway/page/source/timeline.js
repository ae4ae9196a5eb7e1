// Charts of what a reading was: numbers as a line with its range, states as bars. Nothing is drawn across a gap.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";

import { TICK_SPACE, chartColours, ticks } from "./chart.js";
import { html } from "./html.js";
import { cut, numberText } from "./terms.js";
import { moment, t } from "./texts.js";

const HEIGHT = 260, ROW = 44, AXIS = 46;
const ON = /^(on|true|open|unlocked|1)$/i, OFF = /^(off|false|closed|locked|0)$/i;

function seconds(time) {
    return Date.parse(time) / 1000;
}

// The rows of numbers: times, means, lowest, highest. A gap breaks the line; steps without a reading do not, as many
// sensors report changes only.
export function numbers({ points, gaps, step_s: step }) {
    const rows = points.map(([time, mean, low, high]) => [seconds(time) + step / 2, mean, low, high]);
    const breaks = gaps.map(({ from }) => [seconds(from), null, null, null]);
    const all = [...rows, ...breaks].sort((one, other) => one[0] - other[0]);
    return [0, 1, 2, 3].map((column) => all.map((row) => row[column]));
}

// The colour of each state, the same in all rows.
function stateColours(lists, colours) {
    const found = new Map();
    let next = 0;
    for (const { value } of lists.flat()) {
        if (found.has(value)) continue;
        found.set(value, ON.test(value) ? colours.on : OFF.test(value) ? colours.off : colours.lines[next++ % colours.lines.length]);
    }
    return found;
}

function shade(plot, gaps, colours, pale) {
    const { ctx, bbox } = plot;
    ctx.save();
    for (const { from, to, reason } of gaps) {
        if (pale !== (reason === "unconfirmed")) continue;
        const x = plot.valToPos(Math.max(seconds(from), plot.scales.x.min), "x", true), end = plot.valToPos(Math.min(seconds(to), plot.scales.x.max), "x", true);
        ctx.globalAlpha = pale ? 0.6 : 0.5;
        ctx.fillStyle = pale ? colours.back : colours.grid;
        ctx.fillRect(x, bbox.top, Math.max(1, end - x), bbox.height);
    }
    ctx.restore();
}

function drawStates(plot, lists, colours) {
    const { ctx, bbox } = plot, found = stateColours(lists, colours), each = bbox.height / lists.length;
    ctx.save();
    ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    lists.forEach((states, row) => {
        const top = bbox.top + row * each + each * 0.1, tall = each * 0.8;
        for (const { from, to, value, changes } of states) {
            const x = plot.valToPos(seconds(from), "x", true), wide = Math.max(1, plot.valToPos(seconds(to), "x", true) - x);
            ctx.globalAlpha = changes > 1 ? 0.6 : 1;
            ctx.fillStyle = found.get(value);
            ctx.fillRect(x, top, wide, tall);
            ctx.globalAlpha = 1;
            const text = cut(value, 40), plain = OFF.test(value);
            if (ctx.measureText(text).width + 12 * devicePixelRatio < wide) {
                ctx.fillStyle = ON.test(value) ? colours.onText : plain ? colours.text : colours.back;
                ctx.fillText(text, x + 6 * devicePixelRatio, top + tall / 2);
            }
        }
    });
    ctx.restore();
}

// Where the chart begins: a log that is younger than the time span has it from its own begin.
function beginOf({ since, until, complete_since: begin }) {
    return begin && begin > since && begin < until ? begin : since;
}

// The rows of states: what is desired, what is reported, or both; null for numbers.
function rowsOf({ kind, states, reported }) {
    if (kind !== "state") return null;
    const named = reported ? [["history.desired", states], ["history.reported", reported]] : [["history.state", states]];
    return named.filter(([, list]) => list.length);
}

// times: of the changes of states, which the cursor goes along.
function options(place, answer, rows, times) {
    const colours = chartColours(), wide = place.clientWidth;
    const axis = { stroke: colours.text, grid: { stroke: colours.grid, width: 1 }, ticks: { stroke: colours.grid, width: 1 } };
    const x = { time: true, range: () => [seconds(beginOf(answer)), seconds(answer.until)] };
    const time = { label: t("chart.time"), value: (_, at) => (at ? moment(at * 1000) : "") };
    if (rows) {
        const lists = rows.map(([, states]) => states);
        const of = (states) => (_, _value, _series, index) => {
            const at = index === null || index === undefined ? null : stateAt(states, times[index]);
            return at ? cut(at.value, 40) : "";
        };
        return {
            width: wide, height: AXIS + ROW * lists.length + 8, cursor: { y: false }, scales: { x, y: { range: [0, 1] } },
            axes: [{ ...axis, values: ticks, space: TICK_SPACE }, { show: false }],
            series: [time, ...rows.map(([key, states], row) => ({ label: t(key), stroke: colours.lines[row], paths: () => null, points: { show: false }, value: of(states) }))],
            hooks: { draw: [(plot) => drawStates(plot, lists, colours), (plot) => shade(plot, answer.gaps, colours, false), (plot) => shade(plot, answer.gaps, colours, true)] },
        };
    }
    const value = (_, number) => (number === null || number === undefined ? "" : numberText(number));
    const side = { stroke: "transparent", width: 0, points: { show: false }, value };
    return {
        width: wide, height: HEIGHT, scales: { x }, axes: [{ ...axis, values: ticks, space: TICK_SPACE }, { ...axis, size: 60 }],
        series: [
            time, { label: t(answer.step_s ? "history.mean" : "history.value"), stroke: colours.lines[0], width: 2, spanGaps: false, value },
            ...(answer.step_s ? [{ label: t("history.low"), ...side }, { label: t("history.high"), ...side }] : []),
        ],
        bands: answer.step_s ? [{ series: [3, 2], fill: `${colours.lines[0]}33` }] : [],
        hooks: { drawClear: [(plot) => shade(plot, answer.gaps, colours, false)] },
    };
}

// The times at which something changes, in all rows.
function changes(lists) {
    return Array.from(new Set(lists.flat().flatMap(({ from, to }) => [seconds(from), seconds(to)]))).sort((one, other) => one - other);
}

function stateAt(states, at) {
    return states.find(({ from, to }) => seconds(from) <= at && at < seconds(to));
}

// answer: of GET /history; label: what the chart shows.
export function Timeline({ answer, label }) {
    const place = useRef(null);
    useEffect(() => {
        const element = place.current;
        const rows = rowsOf(answer), times = rows && changes(rows.map(([, states]) => states));
        const data = rows ? [times, ...rows.map(() => times.map(() => 0.5))] : numbers(answer).slice(0, answer.step_s ? 4 : 2);
        let drawn = new uPlot(options(element, answer, rows, times), data, element);
        const again = () => {
            drawn.destroy();
            drawn = new uPlot(options(element, answer, rows, times), data, element);
        };
        const resized = new ResizeObserver(() => element.clientWidth !== drawn.width && drawn.setSize({ width: element.clientWidth, height: drawn.height }));
        resized.observe(element);
        const dark = matchMedia("(prefers-color-scheme: dark)");
        dark.addEventListener("change", again);
        return () => {
            resized.disconnect();
            dark.removeEventListener("change", again);
            drawn.destroy();
        };
    }, [answer]);
    return html`<figure class="chart" role="group" aria-label=${label}><div ref=${place}></div></figure>`;
}
