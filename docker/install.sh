#!/bin/sh
# What an image holds, put into a virtual environment. The Dockerfile runs these steps, so do the tests.
#   install.sh dependencies VENV   what pyproject.toml asks for, in the versions of constraints.txt
#   install.sh project VENV        Loadmaster, from the checkout this script lies in
#   install.sh check VENV          whether it starts and finds itself in order
# PYTHON names the interpreter (python3); TORCH_INDEX, if set, is where torch alone comes from.
set -eu

usage() {
    echo "install.sh: $1; expected dependencies, project or check, and a folder" >&2
    exit 2
}
[ $# -eq 2 ] || usage "$# arguments"
step=$1
venv=$(mkdir -p "$2" && cd "$2" && pwd -P)
cd "$(dirname "$0")/.."

# Wheels only: an image needs no compiler, and no stranger's set-up code runs.
install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "$@"
}

case $step in
dependencies)
    "${PYTHON:-python3}" -m venv --clear "$venv"
    # From an index of its own, so that no other package can come from there.
    if [ -n "${TORCH_INDEX:-}" ]; then
        install --only-binary :all: --no-deps --index-url "$TORCH_INDEX" torch
    fi
    "$venv/bin/python" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
print(*project["dependencies"], *extras["train"], *extras["serve"], "setuptools", sep="\n")
' >"$venv/asked-for.txt"
    install --only-binary :all: --requirement "$venv/asked-for.txt"
    ;;
project)
    install --no-deps --no-build-isolation .
    ;;
check)
    cd / # not in the checkout: what was installed is to be found, not what lies here
    "$venv/bin/loadmaster" --version
    "$venv/bin/loadmaster" doctor
    ;;
*)
    usage "unknown step '$step'"
    ;;
esac
