#!/bin/sh
# Entrypoint of a container: `serve`, `head` or `worker`, followed by options of the command.
set -eu

fail() {
    echo "start.sh: $1" >&2
    exit 2
}
# Without a token Ray runs code of anyone who can reach it.
with_token() {
    if [ -z "${RAY_AUTH_TOKEN:-}" ]; then
        export RAY_AUTH_TOKEN_PATH="${RAY_AUTH_TOKEN_PATH:-/run/secrets/ray_token}"
        [ -s "$RAY_AUTH_TOKEN_PATH" ] && [ -r "$RAY_AUTH_TOKEN_PATH" ] ||
            fail "no Ray token in $RAY_AUTH_TOKEN_PATH; expected a readable secret, the same on all nodes"
    fi
    export RAY_AUTH_MODE=token
}

role=${1:-nothing}
[ $# -eq 0 ] || shift
case $role in
serve)
    tokens=${LOADMASTER_TOKENS_FILE:-/run/secrets/loadmaster_tokens}
    [ -s "$tokens" ] && [ -r "$tokens" ] ||
        fail "no tokens in $tokens; expected a readable secret with lines 'read TOKEN' or 'admin TOKEN'"
    exec loadmaster serve --host 0.0.0.0 --port 8700 --tokens "$tokens" "$@"
    ;;
head)
    with_token
    exec ray start --head --block --disable-usage-stats --port 6379 --dashboard-host 0.0.0.0 \
        --metrics-export-port "${LOADMASTER_METRICS_PORT:-8790}" "$@"
    ;;
worker)
    with_token
    [ -n "${RAY_HEAD:-}" ] || fail "RAY_HEAD is not set; expected the head's host:port, such as head:6379"
    exec ray start --address "$RAY_HEAD" --block --disable-usage-stats \
        --metrics-export-port "${LOADMASTER_METRICS_PORT:-8790}" "$@"
    ;;
*)
    fail "unknown role '$role'; expected serve, head or worker"
    ;;
esac
