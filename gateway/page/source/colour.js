// Colours of lamps, in the ways that devices write them: #rrggbb, "red,green,blue", or "hue,saturation,brightness" (Tasmota).

const HEX = /^#[0-9a-f]{6}$/i;
const TRIPLE = /^(\d{1,3}),(\d{1,3}),(\d{1,3})$/;
const WHITE = "#ffffff";

function hex(numbers) {
    return `#${numbers.map((one) => Math.round(Math.min(255, Math.max(0, one))).toString(16).padStart(2, "0")).join("")}`;
}

function rgb(colour) {
    return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

function ofHsb([hue, saturation, brightness]) {
    const part = (n) => {
        const at = (n + hue / 60) % 6;
        return (255 * brightness / 100) * (1 - (saturation / 100) * Math.max(0, Math.min(at, 4 - at, 1)));
    };
    return hex([part(5), part(3), part(1)]);
}

function toHsb(colour) {
    const [red, green, blue] = rgb(colour), high = Math.max(red, green, blue), range = high - Math.min(red, green, blue);
    const hue = !range ? 0 : high === red ? ((green - blue) / range + 6) % 6 : high === green ? (blue - red) / range + 2 : (red - green) / range + 4;
    return [hue * 60, high ? 100 * range / high : 0, 100 * high / 255].map(Math.round).join();
}

function isHsb(key) {
    return /hsb/i.test(key ?? "");
}

// A state as #rrggbb; white for one that is no colour. key: of the actuator.
export function colourOf(state, key) {
    const text = String(state ?? "").replace(/\s/g, "");
    if (HEX.test(text)) return text.toLowerCase();
    const numbers = TRIPLE.exec(text)?.slice(1).map(Number);
    if (!numbers) return WHITE;
    return isHsb(key) ? ofHsb(numbers) : hex(numbers);
}

// A colour (#rrggbb) as the device writes its present state.
export function writtenColour(colour, state, key) {
    if (isHsb(key)) return toHsb(colour);
    return TRIPLE.test(String(state ?? "").replace(/\s/g, "")) ? rgb(colour).join() : colour;
}
