# Runs within the image, as its user: starts its command twice, and is a client in between. Any failure ends it. With
# SEALED=1 the root is read-only, and there are no capabilities: that is looked at first.
set -eu

# serve COMMAND...: start it and wait until the image's health check is content.
serve() {
    "$@" &
    server=$!
    for _ in $(seq 100); do
        if staniel ping --alive >/dev/null 2>&1; then
            staniel ping
            return 0
        fi
        kill -0 $server || { echo "ci: the server has ended" >&2; exit 1; }
        sleep 0.1
    done
    echo "ci: no answer" >&2
    exit 1
}

# stop: as an orchestrator does it.
stop() {
    kill -TERM $server
    wait $server
}

server=
trap 'kill -KILL $server 2>/dev/null || true' EXIT
[ "$(id -u)" -ne 0 ] || { echo "ci: the image runs as root" >&2; exit 1; }
case $(staniel --version) in
*"(compiled)") ;;
*) echo "ci: the image does not run the compiled build" >&2; exit 1 ;;
esac

if [ "${SEALED:-}" = 1 ]; then
    for each in / /etc /opt/staniel /tmp /var/tmp /var/lib; do
        if touch "$each/written" 2>/dev/null; then
            echo "ci: $each can be written" >&2
            exit 1
        fi
    done
    [ -w /var/lib/staniel ] || { echo "ci: the spool cannot be written" >&2; exit 1; }
    held=$(sed -n 's/^\(Cap[A-Z][a-z]*\|NoNewPrivs\):\s*0*/\1=/p' /proc/self/status | tr '\n' ' ')
    [ "$held" = "CapInh= CapPrm= CapEff= CapBnd= CapAmb= NoNewPrivs=1 " ] || { echo "ci: held: $held" >&2; exit 1; }
fi

serve "$@"
python - <<'PYTHON'
from staniel.client import Client

with Client() as client:
    for data in (b"first", b"second"):
        client.put("jobs", data)
    item = client.get("jobs")
    assert item is not None and item.data == b"first", item
PYTHON
stop

serve "$@"
python - <<'PYTHON'
from staniel.client import Client

with Client() as client:
    item = client.get("jobs")
    assert item is not None and item.data == b"second", item
    assert client.get("jobs") is None
PYTHON
stop
staniel pipeline --help >/dev/null 2>&1 || { echo "ci: the pipeline is not in the image" >&2; exit 1; }
echo "ci: the image serves, keeps and stops${SEALED:+, with a read-only root and no capabilities}"
