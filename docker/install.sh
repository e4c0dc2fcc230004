#!/bin/sh
# Installs the contents of an image into a virtual environment. The Dockerfile and the tests run it.
#   install.sh dependencies VENV   dependencies of pyproject.toml, in the versions of constraints.txt
#   install.sh project VENV        Loadmaster, from the checkout of this script
#   install.sh check VENV          run `loadmaster doctor`
# PYTHON is the interpreter (default python3); TORCH_INDEX, if set, the package index of torch alone.
set -eu

usage() {
    echo "install.sh: $1; expected dependencies, project or check, and a folder" >&2
    exit 2
}
[ $# -eq 2 ] || usage "$# arguments"
step=$1
venv=$(mkdir -p "$2" && cd "$2" && pwd -P)
cd "$(dirname "$0")/.."

# Wheels only: no compiler is needed, and no set-up code of packages runs.
install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "$@"
}

case $step in
dependencies)
    "${PYTHON:-python3}" -m venv --clear "$venv"
    # A separate call, so that no other package comes from that index.
    if [ -n "${TORCH_INDEX:-}" ]; then
        install --only-binary :all: --no-deps --index-url "$TORCH_INDEX" torch
    fi
    "$venv/bin/python" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
print(*project["dependencies"], *extras["train"], *extras["serve"], "setuptools", sep="\n")
' >"$venv/dependencies.txt"
    install --only-binary :all: --requirement "$venv/dependencies.txt"
    ;;
project)
    install --no-deps --no-build-isolation .
    ;;
check)
    cd / # not in the checkout: test the installed package
    "$venv/bin/loadmaster" --version
    "$venv/bin/loadmaster" doctor
    ;;
*)
    usage "unknown step '$step'"
    ;;
esac
