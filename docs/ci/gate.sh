#!/bin/sh
# Gates a deploy: gate.sh COMMAND [ARGUMENT]... runs COMMAND only where sbx was proved to hold, on
# this machine, as this user, with this binary, profiles, configuration and kernel.
# SBX names the binary; with ATTACK=1 the self-attack suite is tried as well.
set -eu
sbx=${SBX:-sbx}
[ $# -gt 0 ] || { echo 'usage: gate.sh COMMAND [ARGUMENT]...' >&2; exit 2; }

# What is missing, with what mends it. Add --profile for what later runs will select.
"$sbx" preflight

# It failed before, or never ran: either way nothing is deployed.
[ -z "${ATTACK:-}" ] || "$sbx" canary --attack --fresh

# Migrations, canary, health and dogfood, in this order; the first that does not pass ends it.
# 0: passed. 1: decided otherwise, or tried in vain. 2: the command line means nothing.
"$sbx" verify-deploy

exec "$@"
