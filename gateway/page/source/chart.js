// A chart over time (uPlot), and sparklines.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";

import { html } from "./html.js";
import { numberText } from "./terms.js";
import { locale, moment, t } from "./texts.js";

const HEIGHT = 240;
export const TICK_SPACE = 75; // pixels, so that times with seconds do not touch

export function chartColours() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    return {
        lines: Array.from({ length: 8 }, (_, i) => value(`--series-${i + 1}`)),
        text: value("--muted"), grid: value("--line"),
        back: value("--raised"), on: value("--accent-back"), onText: value("--on-accent"), off: value("--line"),
    };
}

// One row of numbers for each series over the times of all.
function aligned(series) {
    const times = Array.from(new Set(series.flatMap(({ points }) => points.map(([at]) => at)))).sort((a, b) => a - b);
    const place = new Map(times.map((at, index) => [at, index]));
    const rows = series.map(({ points }) => {
        const row = new Array(times.length).fill(null);
        for (const [at, number] of points) row[place.get(at)] = number;
        return row;
    });
    return [times, ...rows];
}

const DAYS = new Intl.DateTimeFormat(locale, { day: "numeric", month: "short" });
const MINUTES = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit" });
const SECONDS = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit", second: "2-digit" });

// Ticks as times; days where the step is a day or more.
export function ticks(_, times, axis, space, step) {
    const form = step >= 86400 ? DAYS : step < 60 ? SECONDS : MINUTES;
    return times.map((time) => form.format(time * 1000));
}

function plot(place, series) {
    const { lines, text, grid } = chartColours();
    const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
    return new uPlot({
        width: place.clientWidth,
        height: HEIGHT,
        axes: [{ ...axis, values: ticks, space: TICK_SPACE }, { ...axis, size: 60 }],
        scales: { x: { time: true } },
        series: [
            { label: t("chart.time"), value: (_, time) => (time ? moment(time * 1000) : "") },
            ...series.map(({ label }, i) => ({
                label, stroke: lines[i], width: 2, value: (_, number) => (number === null || number === undefined ? "" : numberText(number)), spanGaps: true, points: { show: series[i].points.length < 100, size: 5 },
            })),
        ],
    }, aligned(series), place);
}

export function Chart({ series, label }) {
    const place = useRef(null), drawn = useRef(null);
    const shape = JSON.stringify(series.map(({ label: name, points }) => [name, points.length < 100]));
    useEffect(() => {
        const element = place.current;
        drawn.current = plot(element, series);
        const resized = new ResizeObserver(() => drawn.current.setSize({ width: element.clientWidth, height: HEIGHT }));
        resized.observe(element);
        const dark = matchMedia("(prefers-color-scheme: dark)");
        const again = () => {
            drawn.current.destroy();
            drawn.current = plot(element, series);
        };
        dark.addEventListener("change", again);
        return () => {
            resized.disconnect();
            dark.removeEventListener("change", again);
            drawn.current.destroy();
        };
    }, [shape]);
    useEffect(() => drawn.current.setData(aligned(series)), [series]);
    return html`<figure class="chart" role="group" aria-label=${label}><div ref=${place}></div></figure>`;
}

const WIDTH = 96, TALL = 22;

// The last numbers as a line without axes; the value beside it says the same in words.
export function Sparkline({ points, steps }) {
    const first = points[0][0], span = points[points.length - 1][0] - first || 1;
    const numbers = points.map(([, number]) => number);
    const low = Math.min(...numbers), range = Math.max(...numbers) - low || 1;
    const place = ([at, number]) => [
        1 + (WIDTH - 4) * (at - first) / span,
        TALL - 2 - (TALL - 4) * (range === 1 && low === numbers[0] && new Set(numbers).size === 1 ? 0.5 : (number - low) / range),
    ];
    const placed = points.map(place);
    const line = placed.map(([x, y], i) => {
        const corner = steps && i ? `${x.toFixed(1)},${placed[i - 1][1].toFixed(1)} ` : "";
        return `${corner}${x.toFixed(1)},${y.toFixed(1)}`;
    });
    const [x, y] = placed[placed.length - 1];
    return html`<svg class="spark" viewBox=${`0 0 ${WIDTH} ${TALL}`} aria-hidden="true">
        <polyline points=${line.join(" ")} /><circle cx=${x} cy=${y} r="2" />
    </svg>`;
}
