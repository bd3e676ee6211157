# Runs inside user, mount, pid and network namespaces of its own: `lan.sh PROGRAM SCRATCH SCENARIO [MORE…]`.
# A bridge stands for the switch; each machine is a network namespace with one veth and one 169.254 address.
set -euo pipefail
program=$1 scratch=$2 scenario=$3

mount -t tmpfs none /run && mkdir -p /run/netns # ip netns keeps its names there; ours, not the machine's
mount -t proc none /proc 2>/dev/null || true
ip link add lan type bridge
ip link set lan up
for i in 1 2 3; do
  ip netns add m$i
  ip link add v$i type veth peer name eth0 netns m$i
  ip link set v$i master lan up
  ip -n m$i link set lo up
  ip -n m$i addr add 169.254.7.$i/16 dev eth0
  ip -n m$i link set eth0 up
  if [ "$scenario" = bridge ]; then
    ip -n m$i link add docker0 type bridge
    ip -n m$i addr add 172.17.0.1/16 dev docker0
    ip -n m$i link set docker0 up
  fi
done

on() { # on MACHINE COMMAND...: the mesh command on a machine
  local i=$1; shift
  ip netns exec m$i env HOME="$scratch/$i" MESH_STATE_DIR="$scratch/$i/state" "$program" "$@"
}
fail() {
  echo "FAILED: $*"
  for i in 1 2 3; do echo "--- machine $i"; cat "$scratch/$i/out" 2>/dev/null; on $i status 2>&1 || true; done
  exit 1
}
up_count() { on "$1" status --json 2>/dev/null | grep -c '"health": "up"' || true; }
wait_for() { # wait_for SECONDS WHAT COMMAND...
  local end=$((SECONDS + $1)) what=$2; shift 2
  until "$@"; do
    [ $SECONDS -lt $end ] || fail "$what"
    sleep 0.1
  done
}
sees() { [ "$(up_count "$1")" = "$2" ]; }

mkdir -p "$scratch/1" "$scratch/2" "$scratch/3"
token=$(on 1 token --new --mesh lan)
for i in 1 2 3; do
  invitation=$token
  # The third machine belongs to a mesh of its own in this scenario.
  [ "$scenario" = strangers ] && [ $i = 3 ] && invitation=$(on 3 token --new --mesh other)
  lend=(--memory 256M)
  [ "$scenario" = real ] && lend=(--memory 1G --model-dir "$4")
  on $i join "$invitation" --name machine-$i --threads 1 "${lend[@]}" >"$scratch/$i/out" 2>&1 &
done

if [ "$scenario" = strangers ]; then
  wait_for 10 "machines 1 and 2 see each other" sees 1 2
  sleep 3
  sees 1 2 && sees 2 2 && sees 3 1 || fail "two meshes merged"
  exit 0
fi

for i in 1 2 3; do wait_for 10 "machine $i sees three" sees $i 3; done

if [ "$scenario" = real ]; then
  model=$5 question=$6 answer=$7 python=$8 script=$9
  on 3 deploy "$model" --split 3 --context 1024 --streams 2 --wait --timeout-s 120 >/dev/null || fail "deploy"
  for i in 1 2 3; do
    said=$(on $i run "$model" "$question" --system "You are a helpful assistant." --temperature 0 --max-tokens 32) || fail "machine $i does not answer"
    [ "$said" = "$answer" ] || fail "machine $i said: $said"
  done
  if [ -n "$python" ]; then
    for i in 1 2 3; do
      ip netns exec m$i "$python" "$script" http://127.0.0.1:8477 "$model" "$question" "$answer" || fail "the openai package at machine $i"
    done
  fi
  exit 0
fi
on 2 deploy builtin:story --split 3 --wait --timeout-s 60 >/dev/null || fail "deploy"
for i in 1 2 3; do
  story=$(on $i run builtin:story "Tell me a story about a robot." --temperature 0) || fail "machine $i does not answer"
  case $story in "There once lived a small robot called Luna."*"ask for help.") ;; *) fail "machine $i told: $story" ;; esac
done
