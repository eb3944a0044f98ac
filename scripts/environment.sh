# Sourced by the commands beside it, from the root of the checkout: makes `.venv` there, with the
# package (editable), the examples' and the checks' requirements, as pinned in constraints.txt.
# Does nothing when `.venv` already holds what these files ask for. PYTHON names another interpreter.

wanted=$(cat requirements.txt constraints.txt pyproject.toml scripts/environment.sh | cksum)
if ! .venv/bin/pip --version >/dev/null 2>&1; then # none yet, half made, or moved from elsewhere
    echo "making .venv (once; some minutes, most of them for torch)"
    "${PYTHON:-python3}" -m venv --clear .venv
fi
if [ "$(cat .venv/installed 2>/dev/null)" != "$wanted" ]; then
    .venv/bin/pip install --no-compile -c constraints.txt -e '.[test,examples,frameworks,docs]'
    # As pip would, but on all cores, and only what every process imports. One file of it
    # is a template that is no Python: no matter.
    .venv/bin/python -m compileall -qq -j 0 .venv/lib/python*/site-packages/torch || true
    echo "$wanted" >.venv/installed
fi
