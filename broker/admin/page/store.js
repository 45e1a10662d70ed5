// The state of the server: one stream of events, and the rows that it brings. Pages read it and are notified of changes.

import { inPath } from './format.js';

export const SPARK_POINTS = 60;
const SPARK_STEP_MS = 10_000;
const LETTERS = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_';
const SILENT_MS = 10_000; // the server sends something every 3 s
const PROBE_MS = 2000;
const CLUSTER_MS = 2000;
const SMOOTH = 0.25; // of a new rate: one second is a small sample
const SMOOTH_TO_REST = 0.5; // without traffic: shown sooner
const WHY = { // the server's reasons about a queue, the gravest first; its page has the details
  queue_full: 'full: puts are refused', queue_not_read: 'nothing reads it', queue_grows: 'more comes in than goes out',
  queue_filling: 'nearly full', reads_held: 'an open read keeps files',
};
const LATE_MS = 5000; // no event is later than that, unless a clock has been set

export const store = {
  state: 'connecting', // live, lost, login; member: it belongs to a cluster and does not lead
  rows: new Map(),
  server: null,
  health: null,
  totals: null,
  disk: null,
  cluster: null,
  lostAt: 0,
  isWhole: false,
  isOther: false,
};
const listeners = new Set();
let stream = null;
let heardAt = 0;
let offset = 0; // the server's clock minus the browser's
let isDated = false;
let saidAt = 0; // the server's time of its last event
let probing = 0;
let generation = 0;
let sparkStep = 0;
let version = 0;

// `f(what)` is called after "rows" or "state" have changed, with "again" when all rows have come anew, and with "tick"
// every second.
export const listen = (f) => {
  listeners.add(f);
  return () => listeners.delete(f);
};
const tell = (what) => listeners.forEach((f) => f(what));

// The end of a chart: time goes on while the page is cut off, and the shown values do not.
export const wall = () => Date.now() + offset;
export const now = () => (store.state === 'lost' ? store.lostAt : Date.now() + offset);

export function start() {
  open();
  setInterval(beat, 1000);
  document.addEventListener('visibilitychange', () => {
    // A browser has few connections for one server: a hidden page leaves them to the others.
    if (document.hidden) close();
    else if (!stream && store.state !== 'login' && store.state !== 'member') open();
  });
}

function open() {
  close();
  heardAt = performance.now();
  stream = new EventSource('/api/events');
  stream.onmessage = (event) => learn(JSON.parse(event.data));
  stream.onerror = () => {
    if (store.state === 'live') lose();
    if (stream && stream.readyState === EventSource.CLOSED) {
      close();
      probe();
    }
  };
}

function close() {
  stream?.close();
  stream = null;
}

function lose() {
  store.lostAt = saidAt || Date.now(); // the shown values are as old as the last event, not as its end
  store.state = 'lost';
  tell('state');
}

// The stream was refused without a reason. However often that happens, one request at a time asks for it.
async function probe() {
  clearTimeout(probing);
  try {
    const reply = await fetch('/api/server', { cache: 'no-store' });
    if (reply.status === 401) {
      store.state = 'login';
      tell('state');
      return;
    }
    if (reply.ok && !document.hidden) {
      if (!stream) open();
      return;
    }
    if (reply.status === 503 && await becomeMember()) return;
  } catch { /* it is asked again */ }
  if (store.state === 'connecting') lose();
  clearTimeout(probing);
  probing = setTimeout(() => { if (!stream && !document.hidden) probe(); }, PROBE_MS);
}

// The cluster. A server that stands alone says so once; a member is asked again.
let isAlone = false;
let askedAt = -1e9;
async function askCluster() {
  askedAt = performance.now();
  const reply = await fetch('/api/cluster', { cache: 'no-store' });
  const found = reply.ok ? await reply.json() : null;
  isAlone = found?.role === 'alone' || reply.status === 403; // the rights of this user do not change meanwhile
  store.cluster = isAlone ? null : found;
  return store.cluster;
}
const leads = (cluster) => cluster.role === 'leading' || cluster.role === 'handing over';

// Whether the server is a member that does not lead: then it has no stream of events.
async function becomeMember() {
  const cluster = await askCluster();
  if (!cluster || leads(cluster)) return false;
  store.state = 'member';
  tell('state');
  return true;
}

async function askAgain() {
  try {
    const cluster = await askCluster();
    if (store.state !== 'member') return;
    if (!cluster || leads(cluster)) {
      store.state = 'connecting';
      tell('state');
      open();
    }
  } catch {
    if (store.state !== 'member') return;
    saidAt = 0;
    lose();
    probe();
  }
}

export const retry = () => (store.state === 'login' ? null : open());

function beat() {
  const step = Math.floor(now() / SPARK_STEP_MS);
  if (store.state === 'live') {
    if (sparkStep && step !== sparkStep) store.rows.forEach(shiftSpark);
    sparkStep = step;
    store.rows.forEach(settle);
    if (stream && performance.now() - heardAt > SILENT_MS) {
      lose();
      open();
    }
  } else if (store.state === 'lost' && stream && performance.now() - heardAt > SILENT_MS) open();
  const isMember = store.state === 'member' || (store.state === 'live' && !isAlone);
  if (isMember && !document.hidden && performance.now() - askedAt > CLUSTER_MS) askAgain();
  if (!document.hidden) tell('tick');
}

function learn(event) {
  heardAt = performance.now();
  const ahead = event.at_ms - Date.now();
  const isSet = !isDated || Math.abs(offset - ahead) > LATE_MS;
  offset = isSet ? ahead : Math.max(offset - 50, ahead); // the fastest event is the most exact
  isDated = true;
  saidAt = event.at_ms;
  if (event.is_first) {
    generation += 1;
    isAlone = false; // it may be another program
  }
  if (event.fields) columns = event.fields.map((field) => SHORT[field] || field);
  const isAgain = event.is_first && generation > 1;
  if (event.server) store.isOther = isOther(event.server);
  for (const name of ['server', 'health', 'totals', 'disk']) if (event[name]) store[name] = event[name];
  for (const row of event.rows || []) learnRow(row);
  for (const spark of event.sparks || []) learnSpark(spark);
  store.isWhole = !event.more;
  if (!event.more) forgetOld();
  if (store.state !== 'live') {
    store.state = 'live';
    tell('state');
  }
  if (isAgain) tell('again');
  tell('rows');
}

// Whether the server is another program than the one that sent this page, whose page may differ.
let program = '';
function isOther({ version: number, build }) {
  const told = `${number} ${build}`;
  program ||= told;
  return told !== program;
}

// What the page calls a field of a row, if that is not the field's own name.
const SHORT = {
  oldest_at_ms: 'oldestAt', put_rate: 'in', get_rate: 'out', open_reads: 'open', unsynced_bytes: 'unsynced',
  journal_bytes: 'journal', max_items: 'max', dead_letters_to: 'deadTo', memory_bytes: 'memory',
};
let columns = []; // of each row, in their order, as the first event names them

function learnRow(values) {
  const [name] = values;
  if (values.length === 1) {
    store.rows.delete(name);
    return;
  }
  const row = store.rows.get(name) || { spark: [] };
  columns.forEach((column, at) => { row[column] = values[at]; });
  if (!store.rows.has(name)) {
    row.inSmooth = row.in;
    row.outSmooth = row.out;
    store.rows.set(name, row);
  }
  row.generation = generation;
  judge(row);
}

function learnSpark([name, most, letters]) {
  const row = store.rows.get(name);
  if (!row) return;
  row.spark = [...letters].map((c) => (LETTERS.indexOf(c) / 63) * most);
  judge(row);
}

const smooth = (before, value) => {
  const next = before + (value - before) * (value ? SMOOTH : SMOOTH_TO_REST);
  return Math.abs(next - value) < Math.max(0.02, value * 0.005) ? value : next;
};

// Each second, not with each event: a queue that becomes idle is in one event alone.
function settle(row) {
  if (row.inSmooth === row.in && row.outSmooth === row.out) return;
  row.inSmooth = smooth(row.inSmooth, row.in);
  row.outSmooth = smooth(row.outSmooth, row.out);
  judge(row);
}

function shiftSpark(row) {
  row.spark.push(row.items);
  if (row.spark.length > SPARK_POINTS) row.spark.shift();
  judge(row);
}

// What an operator should know about a queue at a glance; `level` 1: look, 2: it does not work. Dead letters can wait.
function judge(row) {
  version += 1;
  row.version = version;
  const net = row.inSmooth - row.outSmooth;
  const isHeld = row.paused === 'all' || row.paused === 'gets';
  row.net = net;
  row.isUnread = row.items > 0 && !isHeld && !row.open && !row.waiters && row.outSmooth < 0.005;
  row.trend = 'steady';
  if (!row.items) row.trend = 'empty';
  else if (isHeld) row.trend = 'paused';
  else if (net > Math.max(0.5, row.inSmooth * 0.02) || row.reasons.includes('queue_grows')) row.trend = 'grows';
  else if (-net > Math.max(0.5, row.outSmooth * 0.02)) row.trend = 'drains';
  else if (row.isUnread) row.trend = 'no reader';
  const why = Object.keys(WHY).find((reason) => row.reasons.includes(reason));
  row.level = row.unreadable ? 2 : row.reasons.some((reason) => reason !== 'dead_letters') ? 1 : 0;
  row.why = row.unreadable ? 'cannot be read' : why ? WHY[why] : '';
}

// The reasons of the server's health that are about a queue, as one question: the filter, the heading and the order ask it.
export const needsYou = (row) => row.unreadable || row.paused !== 'none' || row.reasons.length > 0;

// The server's reply to a pause: its next event says the same, up to a second later.
export function notePause(name, { gets_paused: gets, puts_paused: puts }) {
  const row = store.rows.get(name);
  if (!row) return;
  row.paused = gets && puts ? 'all' : gets ? 'gets' : puts ? 'puts' : 'none';
  judge(row);
  tell('rows');
}

let deadLetters = new Map();
export const isDeadLetters = (name) => deadLetters.has(name);
export const originsOf = (name) => deadLetters.get(name) || [];

function forgetOld() {
  const found = new Map();
  for (const row of store.rows.values()) {
    if (row.generation !== generation) store.rows.delete(row.name);
    else if (row.deadTo) found.set(row.deadTo, [...(found.get(row.deadTo) || []), row.name]);
  }
  const isNew = [...found.keys()].some((name) => !deadLetters.has(name));
  deadLetters = found;
  if (isNew) store.rows.forEach(judge);
}

// Requests

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export const queuePath = (name, rest = '') => `/api/queues/${inPath(name)}${rest && '/'}${rest}`;

async function ask(path, options) {
  let reply;
  try {
    reply = await fetch(path, { cache: 'no-store', ...options });
  } catch {
    throw new Refused(0, 'The server does not answer.');
  }
  const body = await reply.json().catch(() => ({}));
  if (reply.status === 401 && path !== '/login') {
    close();
    store.state = 'login';
    tell('state');
  }
  if (!reply.ok) throw new Refused(reply.status, body.error || `The server says ${reply.status}.`);
  return body;
}
export const get = (path) => ask(path, {});
const send = (method, path, body) => ask(path, { method, headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });
export const post = (path, body = {}) => send('POST', path, body);
export const remove = (path, body = {}) => send('DELETE', path, body);

export async function login(token) {
  await post('/login', { token });
  store.state = 'connecting';
  tell('state');
  open();
}
