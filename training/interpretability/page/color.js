// Colors of numbers: from the background to a strong color, with monotonic brightness.
const RAMPS = {
  light: {
    weight: ["#ffffff", "#d5e6ea", "#96c2cf", "#4a92b4", "#1c5b95", "#0b2a57"],
    less: ["#ffffff", "#fbd7b1", "#ee9d4f", "#b9610f", "#6f3306"],
    more: ["#ffffff", "#c4daec", "#74abd6", "#2a70b0", "#0a3468"],
  },
  dark: {
    weight: ["#1a2125", "#1d4259", "#28708a", "#52a391", "#add06c", "#fdec7a"],
    less: ["#1a2125", "#5b3818", "#a8631c", "#ef9f4b", "#ffdcae"],
    more: ["#1a2125", "#1c3f60", "#2c75ab", "#70b9ee", "#d3eaff"],
  },
};
const dark = window.matchMedia("(prefers-color-scheme: dark)");
let printing = false;

const channels = (color) => [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
const ramps = () => RAMPS[dark.matches && !printing ? "dark" : "light"];

// The color at a share in [0, 1] of a ramp, as [r, g, b].
function shade(name, share) {
  const stops = ramps()[name];
  const x = Math.max(0, Math.min(1, share || 0)) * (stops.length - 1);
  const i = Math.min(Math.floor(x), stops.length - 2);
  const [a, b] = [channels(stops[i]), channels(stops[i + 1])];
  return a.map((channel, c) => Math.round(channel + (x - i) * (b[c] - channel)));
}

// Weights and probabilities, by their square root to make small ones visible.
const ofWeight = (w) => shade("weight", Math.sqrt(Math.max(0, w)));
// Signed numbers, by their share of the largest.
const ofSigned = (v, most) => shade(v < 0 ? "less" : "more", Math.abs(v) / (most || 1));

function luminance([r, g, b]) {
  const linear = [r, g, b].map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

// Give an element a background color, and a readable text color.
function paint(target, color) {
  target.style.backgroundColor = `rgb(${color.join(" ")})`;
  target.style.color = luminance(color) > 0.179 ? "#000" : "#fff";
}

function legend(host, { scale = "weight", most = 1, label = "" } = {}) {
  const canvas = element("canvas", { width: 240, height: 1, role: "img", "aria-label": label || "Scale of colors" });
  const ticks = element("div", { class: "ticks" });
  const context = canvas.getContext("2d");
  for (let i = 0; i < 240; i++) {
    const share = i / 239;
    const color = scale === "weight" ? shade("weight", share) : ofSigned(2 * share - 1, 1);
    context.fillStyle = `rgb(${color.join(" ")})`;
    context.fillRect(i, 0, 1, 1);
  }
  const marks =
    scale === "weight"
      ? [0, 0.05, 0.25, 0.5, 1].map((w) => [Math.sqrt(w), String(w)])
      : [-1, -0.5, 0, 0.5, 1].map((s) => [(s + 1) / 2, s ? signed(s * most, most >= 10 ? 0 : 1) : "0"]);
  for (const [share, text] of marks) ticks.append(element("span", { style: `left:${100 * share}%`, text }));
  host.replaceChildren(canvas, ticks);
}
