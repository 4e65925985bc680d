#!/usr/bin/env bash
# The recipes of places: every command of horarun in them is parsed by `horarun --dry-run`, and the
# scripts do what they say where docker, srun and scontrol only note how they are called.
# Usage: recipes_test.sh RECIPES HORARUN
set -euo pipefail
recipes=$1 horarun=$2
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d "${TMPDIR:-/tmp}/recipes_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir bin job data models
printf 'node-a slots=2\nnode-b slots=2\n' > hostfile

fail() {
  [[ ! -e output ]] || cat output
  echo "FAILED: $*"
  exit 1
}

for python in python3 /usr/bin/python3; do
  ! "$python" -c 'import yaml' 2> /dev/null || break
done
"$python" -c 'import yaml' || fail "install python3-yaml (cmake/debian-packages.txt, test)"

# dry_run WORD...: as a recipe has them; hostfiles of a cluster are not here.
dry_run() {
  local words=() word
  for word; do
    words+=("${word/#\/etc\/mpi\/hostfile/$work/hostfile}")
  done
  "$horarun" --dry-run "${words[@]}" > dry_run.out 2>&1
}

echo "=== commands of horarun"
"$python" "$here/horarun_lines.py" "$recipes/cloud.md" "$recipes/kubernetes.yaml" > lines ||
  fail "horarun_lines.py"
count=0
while IFS= read -r line; do
  mapfile -d '' -t words < <("$python" -c 'import json, sys
for word in json.loads(sys.argv[1]): sys.stdout.write(word + "\0")' "$line")
  [[ ${words[0]} != --check-build ]] || continue
  HORARUN_TOKEN=0123456789abcdef MASTER_ADDR=10.0.0.5 NNODES=2 NODE_RANK=0 \
    dry_run "${words[@]}" || fail "horarun refuses ${words[*]}: $(cat dry_run.out)"
  grep -q ' --guard ' dry_run.out || fail "nothing is started by ${words[*]}: $(cat dry_run.out)"
  count=$((count + 1))
done < lines
((count >= 6)) || fail "only $count commands were found"
! dry_run --no-such-flag ./train || fail "a flag that horarun does not have is taken"

echo "=== Kubernetes: what belongs together"
"$python" - "$recipes/kubernetes.yaml" "$recipes/docker/Dockerfile" <<'END' || fail "kubernetes.yaml"
import sys
import yaml
(job,) = yaml.safe_load_all(open(sys.argv[1], encoding="utf-8"))
dockerfile = open(sys.argv[2], encoding="utf-8").read()
assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
spec = job["spec"]
roles = {role: replica["template"]["spec"] for role, replica in spec["mpiReplicaSpecs"].items()}
launcher, worker = (roles[role]["containers"][0] for role in ("Launcher", "Worker"))
assert launcher["image"] == worker["image"]
mounted = {mount["name"] for mount in worker["volumeMounts"]}
assert mounted == {volume["name"] for volume in roles["Worker"]["volumes"]}
paths = [mount["mountPath"] for mount in worker["volumeMounts"]]
assert "/dev/shm" in paths
for option in ("--data", "--model-dir"):
    path = launcher["command"][launcher["command"].index(option) + 1]
    assert any(path.startswith(mount) for mount in paths), path
# The image's sshd: its settings, port and the folder of its key.
assert worker["command"][-1] in dockerfile
assert f"Port {worker['readinessProbe']['tcpSocket']['port']}\\n" in dockerfile
assert f"HostKey {spec['sshAuthMountPath']}/id_rsa" in dockerfile
assert f"--uid {worker['securityContext']['runAsUser']} " in dockerfile
END

echo "=== Docker: two nodes"
cat > bin/docker <<'END'
#!/bin/bash
printf '%s\n' "$@" > docker.arguments
END
chmod +x bin/docker
for node in 0 1; do
  PATH=$work/bin:$PATH HORARUN_TOKEN=0123456789abcdef RANKS=3 DOCKER_OPTIONS='--gpus all' \
    "$recipes/docker/run.sh" $node 10.0.0.5 data --epochs 2 > output 2>&1 || fail "run.sh $node"
  mapfile -t words < docker.arguments
  [[ " ${words[*]} " == *" --network host --shm-size "*" --volume $work/data:/data:ro "* ]] ||
    fail "docker got ${words[*]}"
  [[ " ${words[*]} " == *" --gpus all hora horarun "* ]] || fail "docker got ${words[*]}"
  ! grep -q 0123456789abcdef docker.arguments || fail "the token is on the command line"
  while [[ ${words[0]} != horarun ]]; do words=("${words[@]:1}"); done
  dry_run "${words[@]:1}" || fail "horarun refuses ${words[*]}: $(cat dry_run.out)"
  grep -q -- ' -np 6 .*cifar10.--data./data.--epochs.2' dry_run.out ||
    fail "not 6 ranks: $(cat dry_run.out)"
done
! HORARUN_TOKEN=short "$recipes/docker/run.sh" 0 10.0.0.5 data > output 2>&1 || fail "a short token"
! "$recipes/docker/run.sh" 2 10.0.0.5 data > output 2>&1 || fail "node 2"

echo "=== Slurm: a job that has saved goes back into the queue"
mkdir -p build/core/launch build/examples
cat > build/core/launch/horarun <<'END'
#!/bin/bash
printf '%s\n' "$@" > horarun.arguments
[[ -e stay ]] || exit "$(cat status)"
trap 'echo saved >> signals; exit 75' USR1
echo > started
for _ in {1..200}; do sleep 0.1; done
exit 99
END
cat > bin/scontrol <<'END'
#!/bin/bash
echo "$*" >> scontrol.calls
END
chmod +x build/core/launch/horarun bin/scontrol
batch=(env PATH="$work/bin:$PATH" BUILD=build MODELS=models SLURM_JOB_ID=7
  bash "$recipes/slurm.sbatch" --data 'a folder' --epochs 3)
for status in 0 3; do
  echo $status > status
  code=0
  "${batch[@]}" > output 2>&1 || code=$?
  ((code == status)) || fail "exit code $code in place of $status"
  [[ ! -e scontrol.calls ]] || fail "requeued after $status"
done
mapfile -t words < horarun.arguments
[[ $(printf '%s,' "${words[@]:1}") == '--model-dir,models,--resume,auto,--data,a folder,--epochs,3,' ]] ||
  fail "horarun got ${words[*]}"
dry_run "${words[@]}" || fail "horarun refuses ${words[*]}: $(cat dry_run.out)"
for signal in USR1 TERM; do
  : > stay
  rm -f started signals scontrol.calls
  "${batch[@]}" > output 2>&1 &
  script=$!
  for _ in {1..100}; do
    [[ ! -e started ]] || break
    sleep 0.1
  done
  kill -s $signal $script
  code=0
  wait $script || code=$?
  ((code == 75)) || fail "exit code $code after SIG$signal"
  [[ $(cat signals) == saved ]] || fail "SIG$signal did not reach horarun once"
  [[ $(cat scontrol.calls) == 'requeue 7' ]] || fail "not requeued after SIG$signal"
done
! "${batch[@]:0:1}" LAUNCH='qsub' "${batch[@]:1}" > output 2>&1 || fail "LAUNCH=qsub"
echo "all as expected"
