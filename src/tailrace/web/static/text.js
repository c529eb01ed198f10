// Writing numbers and building elements. Foreign text only ever goes through textContent.

const DASH = "–";

const NB = "\u00a0"; // no line break between a number and its unit

export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return DASH;
  if (ms >= 120000) {
    const seconds = Math.round(ms / 1000);
    return `${Math.floor(seconds / 60)}${NB}min${NB}${seconds % 60}${NB}s`;
  }
  if (ms >= 9995) return `${(ms / 1000).toFixed(1)}${NB}s`;
  if (ms >= 999.5) return `${(ms / 1000).toFixed(2)}${NB}s`;
  if (ms >= 9.95) return `${ms.toFixed(0)}${NB}ms`;
  if (ms >= 0.995) return `${ms.toFixed(1)}${NB}ms`;
  return ms ? `${ms.toFixed(2)}${NB}ms` : `0${NB}ms`;
}

export function count(number) {
  return number === null || number === undefined ? DASH : Math.round(number).toLocaleString("en-US");
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return DASH;
  return perSecond >= 100 ? count(perSecond) : perSecond.toPrecision(2).replace(/e.*/, "");
}

export function percent(share) {
  const value = share * 100;
  if (value && value < 0.1) return `<${NB}0.1${NB}%`;
  return `${value.toFixed(value < 9.95 ? 1 : 0)}${NB}%`;
}

export function clock(unixMs) {
  return new Date(unixMs).toLocaleTimeString("en-GB");
}

export const byId = (id) => document.getElementById(id);

// Only touches the document when the text differs: no flicker, no needless announcements.
export function say(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

export function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
