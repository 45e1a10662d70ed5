# Runs within the image, as its user: starts its command twice, and is a client in between. Any failure ends it.
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

trap 'kill -KILL $server 2>/dev/null || true' EXIT
[ "$(id -u)" -ne 0 ] || { echo "ci: the image runs as root" >&2; exit 1; }
case $(staniel --version) in
*"(compiled)") ;;
*) echo "ci: the image does not run the compiled build" >&2; exit 1 ;;
esac

serve "$@"
python - <<'PYTHON'
import trio

from staniel.client import connect


async def main() -> None:
    async with connect() as client:
        for data in (b"first", b"second"):
            await client.put("jobs", data)
        item = await client.get("jobs")
        assert item is not None and item.data == b"first", item


trio.run(main)
PYTHON
stop

serve "$@"
python - <<'PYTHON'
import trio

from staniel.client import connect


async def main() -> None:
    async with connect() as client:
        item = await client.get("jobs")
        assert item is not None and item.data == b"second", item
        assert await client.get("jobs") is None


trio.run(main)
PYTHON
stop
staniel pipeline --help >/dev/null 2>&1 || { echo "ci: the pipeline is not in the image" >&2; exit 1; }
echo "ci: the image serves, keeps and stops"
