// The cluster that the server is a member of: who leads, which members are in sync, how far each is behind. A leader shows it above its
// queues; a member that does not lead serves nothing else.

import { command, h, head, icon, refill } from './dom.js';
import * as f from './format.js';
import { store } from './store.js';

const COLUMNS = [['Member', ''], ['Role', ''], ['In sync', ''], ['Records behind', 'num'], ['Bytes behind', 'num'], ['For', 'num'], ['Clients reach it at', '']];
const SLOW_MS = 1000;

const yes = (isIn, why = '') => (isIn ? h('span', null, 'yes') : h('span', { class: 'warn' }, why || 'no'));

function row(name, role, inSync, lag, address) {
  const late = lag && lag[2] > SLOW_MS;
  const cells = lag ? [f.count(lag[0]), f.bytes(lag[1]), lag[2] ? f.duration(lag[2]) : '0 ms'] : ['', '', ''];
  return h('tr', { class: 'r' }, h('td', null, h('b', null, f.oneLine(name))), h('td', null, role), h('td', null, inSync),
    cells.map((text) => h('td', { class: late ? 'num warn' : 'num' }, text)), h('td', null, h('span', { class: 'mono' }, f.oneLine(address))));
}

function rows(cluster) {
  const isLeader = cluster.leader_id === cluster.id;
  const own = row(cluster.name, cluster.role, yes(cluster.in_sync.includes(cluster.id)), null, isLeader ? cluster.leader_address : '');
  if (!isLeader) {
    const others = cluster.followers.map((other) => row(other.name || other.id, other.state, yes(other.in_set), null, other.address));
    return [...others.slice(0, 1), own, ...others.slice(1)];
  }
  return [own, ...cluster.followers.map((other) => row(other.name || other.id, other.is_connected ? other.state : 'not connected', yes(other.may_lead, other.in_set ? 'in set' : 'no'),
    other.lag_records === null ? null : [other.lag_records, other.lag_bytes, other.lag_ms], other.address))];
}

// What an operator should read first, each with its mark and a command.
function notes(cluster) {
  const found = [];
  if (cluster.etcd_restored) found.push(['bad', `etcd has an older state than before: ${cluster.etcd_restored}`, 'staniel cluster restore-etcd --help']);
  else if (cluster.etcd) found.push(['warn', `etcd: ${cluster.etcd}`, 'etcdctl endpoint health']);
  if (cluster.unfit) found.push(['warn', `${cluster.name} cannot lead: ${cluster.unfit}`, '']);
  if (cluster.why) found.push(['warn', `${cluster.name}: ${cluster.why}`, 'staniel cluster']);
  if (cluster.in_sync.length && cluster.in_sync.length < cluster.min_in_sync) found.push(['bad', `puts are refused: ${cluster.in_sync.length} of ${cluster.min_in_sync} members are in sync`, 'staniel cluster']);
  if (cluster.copies) found.push(['warn', `${f.many(cluster.copies, 'member')} copies the files of this one`, '']);
  return found.map(([level, text, how]) => h('li', null, icon(level, level === 'bad' ? 'mk bad' : 'mk'), h('span', null, f.oneLine(text)), how ? command(how) : ''));
}

export class ClusterBox {
  constructor() {
    this.element = h('section', { class: 'cluster wide', 'aria-label': 'Cluster', hidden: true });
    this.key = '';
  }

  tick() {
    const { cluster } = store;
    this.element.hidden = !cluster;
    if (!cluster) return;
    const key = JSON.stringify(cluster);
    if (key === this.key) return;
    const found = notes(cluster);
    const held = cluster.held_replies ? `, ${f.many(cluster.held_replies, 'reply waits', 'replies wait')} for the others` : '';
    const isDone = refill(this.element,
      h('header', null, h('h2', null, `Cluster ${f.oneLine(cluster.cluster)}`), h('span', { class: 'muted' }, `epoch ${f.count(cluster.epoch)}, ${f.count(cluster.in_sync.length)} in sync, puts need ${f.count(cluster.min_in_sync)}${held}`)),
      found.length ? h('ol', null, found) : '',
      h('table', { class: 'list' }, head(COLUMNS), h('tbody', null, rows(cluster))));
    if (isDone) this.key = key;
  }
}

// The page of a member that does not lead.
export function memberPage() {
  const box = new ClusterBox();
  const title = h('h1');
  const about = h('p', { class: 'muted' });
  const element = h('div', null, h('div', { class: 'head' }, title), about, box.element);
  return {
    element, title: 'Cluster', nav: '', isOfMember: true,
    start() { this.tick(); },
    tick() {
      const { cluster } = store;
      if (!cluster) return;
      const leader = cluster.leader_name || cluster.leader_address;
      const does = { following: `follows ${leader}`, copying: `copies the files of ${leader}` }[cluster.role] || `is ${cluster.role}`;
      title.textContent = `${f.oneLine(cluster.name)} ${f.oneLine(does)}`;
      about.textContent = cluster.leader_address && cluster.leader_id !== cluster.id ? `Queues are served by the leader, ${f.oneLine(cluster.leader_address)}; its own page shows them. This page goes on to them once this member leads.` : 'No queues are served here until this member leads.';
      box.tick();
    },
  };
}
