# Sourced by the other scripts: makes .venv once and installs qdebug with the extras in $1.
# Installs again only when pyproject.toml or the C source changed, or for another extra.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "qdebug needs Python 3.11 or newer; '$python' is not. Set PYTHON=/path/to/python3.11." >&2
    exit 2
fi

extras=${1:-}
stamp=.venv/.installed-${extras:-base}
if [ ! -e "$stamp" ] || [ -n "$(find pyproject.toml qdebug/native/*.c -newer "$stamp")" ]; then
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    echo "Installing qdebug into .venv ..." >&2
    # Setuptools warns about its own newer features; a user can do nothing about that.
    PYTHONWARNINGS=ignore .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${extras:+[$extras]}"
    touch "$stamp"
fi
