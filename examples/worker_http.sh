#!/bin/sh
# A worker that needs curl alone: reserve an item, work on it, confirm it. An item that is not confirmed comes back.
#   examples/worker_http.sh http://127.0.0.1:2223 jobs ./do-the-work
# The work gets the item on standard input; its exit status 0 confirms the item, any other hands it back. With
# STANIEL_TOKEN in the environment it is sent as the user's token. COUNT=3 ends the worker after three items.
set -u
server=$1 queue=$2
shift 2
url="$server/api/queues/$queue"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
done=0

ask() {
    body=$1
    shift
    curl -sS -f --max-time 60 -H "Content-Type: application/json" \
        ${STANIEL_TOKEN:+-H "Authorization: Bearer $STANIEL_TOKEN"} --data "$body" "$@"
}

while [ "$done" -lt "${COUNT:-1000000000}" ]; do
    rm -f "$dir/item"
    if ! ask '{"wait_ms": 20000, "timeout_ms": 60000}' -H "Accept: application/octet-stream" \
        -D "$dir/head" -o "$dir/item" "$url/reserve"; then
        sleep 1 # the server is away, or refuses: what was reserved comes back by itself
        continue
    fi
    token=$(sed -n 's/^staniel-token: \([0-9-]*\).*/\1/p' "$dir/head")
    [ -n "$token" ] || continue # nothing came
    if "$@" <"$dir/item"; then ending=confirm; else ending=abort; fi
    # Sent again until it is answered: a second confirmation of the same token does no harm.
    until ask "{\"tokens\": [\"$token\"]}" -o "$dir/answer" "$url/reserved/$ending"; do sleep 1; done
    done=$((done + 1))
done
