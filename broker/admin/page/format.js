// Numbers and names as people read them. Sizes count in 1024, as the configuration does.

const whole = new Intl.NumberFormat('en-US');
const oneDigit = new Intl.NumberFormat('en-US', { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const BYTE_UNITS = ['KB', 'MB', 'GB', 'TB', 'PB'];

export const count = (n) => whole.format(Math.round(n));

export function short(n) {
  if (n < 1e7) return count(n);
  return n < 1e9 ? `${oneDigit.format(n / 1e6)} M` : `${oneDigit.format(n / 1e9)} G`;
}

export function axis(n) {
  const trim = (x) => String(+x.toFixed(x >= 100 ? 0 : x >= 10 ? 1 : 2));
  if (n >= 1e9) return `${trim(n / 1e9)}G`;
  if (n >= 1e6) return `${trim(n / 1e6)}M`;
  return n >= 1e3 ? `${trim(n / 1e3)}k` : trim(n);
}

export function rate(n) {
  if (n < 0.005) return '0';
  if (n < 0.1) return n.toFixed(2);
  return n < 10 ? n.toFixed(1) : count(n);
}

export function bytes(n) {
  if (n < 1) return '0';
  if (n < 1024) return `${Math.round(n)} B`;
  let unit = -1;
  while (n >= 999.5 && unit < BYTE_UNITS.length - 1) {
    n /= 1024;
    unit += 1;
  }
  return `${n < 99.95 ? n.toFixed(1) : count(n)} ${BYTE_UNITS[unit]}`;
}

// The two largest units that matter: 2 h 14 m, 9 m 56 s.
export function duration(ms) {
  if (ms < 1000) return ms < 1 ? '0' : '<1 s';
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${s} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return m < 10 && s % 60 ? `${m} m ${s % 60} s` : `${m} m`;
  const h = Math.floor(m / 60);
  if (h < 24) return m % 60 && h < 10 ? `${h} h ${m % 60} m` : `${h} h`;
  const d = Math.floor(h / 24);
  return d < 10 && h % 24 ? `${d} d ${h % 24} h` : `${whole.format(d)} d`;
}

export const clock = (ms, withSeconds = true) => new Date(ms).toTimeString().slice(0, withSeconds ? 8 : 5);

// The time alone for today; the day, too, for other days.
export function moment(ms, nowMs) {
  const day = new Date(ms);
  if (day.toDateString() === new Date(nowMs).toDateString()) return clock(ms);
  const two = (n) => String(n).padStart(2, '0');
  return `${day.getFullYear()}-${two(day.getMonth() + 1)}-${two(day.getDate())} ${clock(ms)}`;
}

export const zone = () => Intl.DateTimeFormat().resolvedOptions().timeZone || 'local time';

export const many = (n, one, more = `${one}s`) => `${whole.format(n)} ${n === 1 ? one : more}`;
export const items = (n) => many(n, 'item');

// Invisible characters are shown by name: control characters, marks that turn the text around, lone surrogates.
const UNSEEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
export function visible(text) {
  return text.replace(UNSEEN, (c) => {
    const code = c.charCodeAt(0);
    if (code >= 0xdc80 && code <= 0xdcff) return `\\x${(code - 0xdc00).toString(16)}`;
    return code < 256 ? `\\x${code.toString(16).padStart(2, '0')}` : `\\u${code.toString(16).padStart(4, '0')}`;
  });
}
export const oneLine = (text) => visible(text.replace(/\t/g, '\\t').replace(/\n/g, '\\n'));

// A name as a part of a path. Bytes of a file name that are no UTF-8 come as lone surrogates, and go back as bytes.
export function inPath(name) {
  return [...name].map((c) => {
    const code = c.charCodeAt(0);
    if (c.length === 1 && code >= 0xdc80 && code <= 0xdcff) return `%${(code - 0xdc00).toString(16)}`;
    return c.length === 1 && code >= 0xd800 && code <= 0xdfff ? '%ef%bf%bd' : encodeURIComponent(c);
  }).join('');
}

// A word of a shell's command line.
export function shell(word) {
  if (/^[\w@%+=:,/][\w@%+=:,./-]*$/.test(word)) return word;
  if (!/[\x00-\x1f\x7f-\x9f]|[\ud800-\udfff]/.test(word)) return `'${word.replaceAll("'", "'\\''")}'`;
  const escaped = [...word].map((c) => {
    const code = c.charCodeAt(0);
    if (code >= 0xdc80 && code <= 0xdcff) return `\\x${(code - 0xdc00).toString(16)}`;
    if (c === "'" || c === '\\') return `\\${c}`;
    if (code < 32 || code === 127) return `\\x${code.toString(16).padStart(2, '0')}`;
    return code < 160 && code > 127 ? `\\u00${code.toString(16)}` : c;
  });
  return `$'${escaped.join('')}'`;
}
