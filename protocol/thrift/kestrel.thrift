/**
 * The thrift service of Kestrel 2.4, as this server speaks it: framed transport, binary protocol.
 * Good for generating clients in any language, too.
 */

namespace java net.lag.kestrel.thrift
namespace rb Kestrel

struct Item {
  1: binary data,
  /** What confirm and abort want; 0 for an item that is already gone. */
  2: i64 id
}

struct QueueInfo {
  /** Absent if the queue is empty. */
  1: optional binary head_item,
  2: i64 items,
  3: i64 bytes,
  4: i64 journal_bytes,
  /** Milliseconds. */
  5: i64 age,
  6: i32 waiters,
  7: i32 open_transactions
}

enum Status {
  NOT_CONFIGURED = 0,
  QUIESCENT = 1,
  READ_ONLY = 2,
  UP = 3
}

service Kestrel {
  /** How many items were stored; the first refused one ends it. expiration_msec is relative, 0: never. */
  i32 put(1: string queue_name, 2: list<binary> items, 3: i32 expiration_msec = 0),

  /**
   * Up to max_items, waiting up to timeout_msec for all of them. With auto_abort_msec 0 they are gone; otherwise they
   * are open, and come back after that time unless confirmed.
   */
  list<Item> get(1: string queue_name, 2: i32 max_items, 3: i32 timeout_msec = 0, 4: i32 auto_abort_msec = 0),

  /** How many of the ids were still open. */
  i32 confirm(1: string queue_name, 2: set<i64> ids),
  i32 abort(1: string queue_name, 2: set<i64> ids),

  QueueInfo peek(1: string queue_name),
  void flush_queue(1: string queue_name),
  void flush_all_queues(),
  void delete_queue(1: string queue_name),
  Status current_status(),
  void set_status(1: Status status),
  string get_version()
}

/** Before each message of a connection that finagle has upgraded; its other fields (tracing) are skipped. */
struct ClientId {
  1: string name
}

struct RequestHeader {
  6: optional ClientId client_id
}
