#!/bin/bash
# In ssh's place: drops the options, and runs the command in a session and with a host name of its
# own, for Open MPI takes equal names for one host, and without the folder FAULTS_HIDDEN. The host
# "unreachable" is not there.
while [[ $1 == -* ]]; do
  [[ $1 != -o && $1 != -p && $1 != -i ]] || shift
  shift
done
host=$1
shift
[[ $1 != -- ]] || shift
if [[ $host == unreachable ]]; then
  echo "ssh: connect to host unreachable port 22: No route to host" >&2
  exit 255
fi
export FAULTS_HOST=$host
if [[ -n ${FAULTS_HIDDEN-} ]]; then
  exec setsid --wait unshare --uts --mount /bin/sh -c \
    "hostname emulated-${host##*.} && mount -t tmpfs none ${FAULTS_HIDDEN-} && $*"
fi
if unshare --uts true 2> /dev/null; then
  exec setsid --wait unshare --uts /bin/sh -c "hostname emulated-${host##*.} && $*"
fi
exec setsid --wait /bin/sh -c "$*"
