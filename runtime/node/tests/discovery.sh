# Runs inside user, mount, pid and network namespaces of its own: `discovery.sh PROGRAM SCRATCH SCENARIO`.
# Nets on which machines do not find each other by themselves, or hardly. Machine I is the namespace mI; a bridge that lets
# no multicast out of a port stands for a firewall or a switch that drops it.
set -euo pipefail
program=$1 scratch=$2 scenario=$3

mount -t tmpfs none /run && mkdir -p /run/netns
mount -t proc none /proc 2>/dev/null || true

machine() { # machine I: a namespace
  ip netns add m$1
  ip -n m$1 link set lo up
  mkdir -p "$scratch/$1"
}
plug() { # plug I SWITCH ADDRESS [NAME]: a cable from machine I to a switch
  local name=${4:-eth0}
  ip link show "$2" >/dev/null 2>&1 || { ip link add "$2" type bridge mcast_snooping 0; ip link set "$2" up; }
  ip link add "v$1$2" type veth peer name "$name" netns m$1
  ip link set "v$1$2" master "$2" up
  ip -n m$1 addr add "$3" dev "$name"
  ip -n m$1 link set "$name" up
}
deafen() { ip link set "v$1$2" type bridge_slave mcast_flood off; } # deafen I SWITCH: no multicast reaches machine I
on() { # on MACHINE COMMAND...: the mesh command on a machine
  local i=$1; shift
  ip netns exec m$i env HOME="$scratch/$i" MESH_STATE_DIR="$scratch/$i/state" "$program" "$@"
}
fail() {
  echo "FAILED: $*"
  for out in "$scratch"/*/out; do
    local i; i=$(basename "$(dirname "$out")")
    echo "--- machine $i"; cat "$out"; on $i status 2>&1 || true
  done
  exit 1
}
join() { # join I ARGUMENTS...: starts a node in the background
  local i=$1; shift
  # Each step replaces the one before, so that the process that is noted is the node.
  (exec ip netns exec m$i env HOME="$scratch/$i" MESH_STATE_DIR="$scratch/$i/state" \
    "$program" join "$@" --name machine-$i --threads 1 --memory 256M >>"$scratch/$i/out" 2>&1) &
  pids[$i]=$!
}
wait_for() { # wait_for SECONDS WHAT COMMAND...
  local end=$((SECONDS + $1)) what=$2; shift 2
  until "$@"; do
    [ $SECONDS -lt $end ] || fail "$what"
    sleep 0.1
  done
}
sees() { [ "$(on "$1" status --json 2>/dev/null | grep -c '"health": "up"')" = "$2" ]; }
notices() { on "$1" status --json 2>/dev/null | grep -q "$2"; }
declare -A pids

case $scenario in
quiet) # F7: no multicast at all
  for i in 1 2 3; do machine $i; plug $i lan 10.77.0.$i/24; deafen $i lan; done
  token=$(on 1 token --new --mesh lan)
  for i in 1 2; do join $i "$token" --listen 0.0.0.0:7000; done
  wait_for 15 "machine 1 says that it is alone" notices 1 "no other node was heard.*eth0 (10.77.0.1.*--peer HOST:PORT"
  sees 1 1 && sees 2 1 || fail "somebody was found without multicast"
  # A third that is told of one of them, joins it.
  join 3 "$token" --peer 10.77.0.1:7000
  wait_for 3 "machine 3 joins by address" sees 3 2
  # And the second, started again with the same, learns of all from that one.
  kill ${pids[2]}; wait ${pids[2]} || true
  join 2 "$token" --peer 10.77.0.1:7000
  for i in 1 2 3; do wait_for 5 "machine $i sees three" sees $i 3; done
  ;;
oneway) # F13: the first machine hears no multicast; the others hear it
  for i in 1 2 3; do machine $i; plug $i lan 10.77.0.$i/24; done
  deafen 1 lan
  token=$(on 1 token --new --mesh lan)
  for i in 1 2; do join $i "$token"; done
  for i in 1 2; do wait_for 10 "machine $i sees two" sees $i 2; done
  # One that comes later, too.
  sleep 1
  join 3 "$token"
  for i in 1 2 3; do wait_for 10 "machine $i sees three" sees $i 3; done
  ;;
routed) # F8: three subnets around a router; two machines know only the first, which then leaves
  ip netns add router; ip -n router link set lo up
  ip netns exec router sysctl -qw net.ipv4.ip_forward=1
  for i in 1 2 3; do
    machine $i
    ip link add r$i type veth peer name eth0 netns m$i
    ip link set r$i netns router
    ip -n router addr add 10.$i.0.1/24 dev r$i; ip -n router link set r$i up
    ip -n m$i addr add 10.$i.0.2/24 dev eth0; ip -n m$i link set eth0 up
    ip -n m$i route add default via 10.$i.0.1
  done
  token=$(on 1 token --new --mesh lan)
  join 1 "$token" --listen 0.0.0.0:7000
  for i in 2 3; do join $i "$token" --peer 10.1.0.2:7000; done
  for i in 1 2 3; do wait_for 10 "machine $i sees three" sees $i 3; done
  kill ${pids[1]}; wait ${pids[1]} || true
  for i in 2 3; do wait_for 5 "machine $i sees two" sees $i 2; done
  on 2 deploy builtin:story --split 2 --wait --timeout-s 60 >/dev/null || fail "deploy over the router"
  on 3 run builtin:story "Tell me a story about a robot." --temperature 0 | grep -q Luna || fail "machine 3 does not answer"
  sees 2 2 && sees 3 2 || fail "they did not stay together"
  ;;
thirty) # F5: a hub with two cables in subnets of four addresses that share three octets
  for i in 1 2 3; do machine $i; done
  plug 1 left 10.9.0.1/30 eth0; plug 2 left 10.9.0.2/30
  plug 1 right 10.9.0.5/30 eth1; plug 3 right 10.9.0.6/30
  ip netns exec m1 sysctl -qw net.ipv4.ip_forward=1
  ip -n m2 route add 10.9.0.4/30 via 10.9.0.1; ip -n m3 route add 10.9.0.0/30 via 10.9.0.5
  token=$(on 1 token --new --mesh lan)
  for i in 1 2 3; do join $i "$token"; done
  for i in 1 2 3; do wait_for 10 "machine $i sees three" sees $i 3; done
  ;;
late) # F9: the seed comes up a minute late; its name leads to a dead IPv6 address first
  for i in 1 2; do machine $i; plug $i lan 10.77.0.$i/24; deafen $i lan; done
  ip -n m2 addr add fd00::2/64 dev eth0 nodad
  printf 'fd00::1 seed\n10.77.0.1 seed\n' >"$scratch/hosts"
  mount --bind "$scratch/hosts" /etc/hosts
  token=$(on 1 token --new --mesh lan)
  join 2 "$token" --peer seed:7000
  sleep "${LATE_S:-20}"
  join 1 "$token" --listen 10.77.0.1:7000
  for i in 1 2; do wait_for 10 "machine $i sees two" sees $i 2; done
  # Once more with the seed there: the dead address costs nothing.
  kill ${pids[2]}; wait ${pids[2]} || true
  join 2 "$token" --peer seed:7000
  wait_for 3 "machine 2 is back" sees 2 2
  ;;
crowd) # F22: five hundred addresses
  for i in 1 2; do machine $i; plug $i lan 10.77.0.$i/24; done
  for n in $(seq 0 499); do echo "addr add 10.88.$((n / 250)).$((n % 250 + 1))/32 dev eth0"; done | ip -n m2 -batch -
  token=$(on 1 token --new --mesh lan)
  join 1 "$token" --listen 10.77.0.1:7000
  wait_for 5 "machine 1 is up" sees 1 1
  join 2 "$token" --peer 10.77.0.1:7000
  wait_for 5 "machine 2 starts and joins" sees 2 2
  rss=$(grep VmRSS "/proc/${pids[2]}/status" | tr -dc 0-9)
  [ "$rss" -lt 102400 ] || fail "machine 2 takes $rss KiB"
  ;;
*) fail "no such scenario" ;;
esac
