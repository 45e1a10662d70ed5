// npm's memcached with a pool of one: puts, takes, reads reliably, and says what it got.
const Memcached = require("memcached");
const { promisify } = require("util");

const client = new Memcached(`127.0.0.1:${process.argv[2]}`, { poolSize: 1, retries: 0 });
const get = promisify(client.get.bind(client));
const set = promisify(client.set.bind(client));
const show = (value) => console.log(value === undefined ? "nothing" : JSON.stringify(value));

(async () => {
  for (const value of ["one", "two", "three"]) show(await set("jobs", value, 0));
  show(await get("jobs"));
  show(await get("jobs/open"));
  show(await get("jobs/abort"));
  show(await get("jobs/open/t=100"));
  show(await get("jobs/close/open"));
  show(await get("jobs/close"));
  show(await get("jobs/t=50"));
  for (const value of [42, true, { answer: [42] }]) {
    await set("jobs", value, 0);
    show(await get("jobs"));
  }
  await set("jobs", "last", 0);
  show(await promisify(client.add.bind(client))("jobs", "refused", 0).catch(() => "refused"));
  show(await get("jobs"));
  show(await promisify(client.del.bind(client))("jobs"));
  client.end();
})();
