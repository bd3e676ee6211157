# Runs inside user, mount, pid and network namespaces of its own: `links.sh PROGRAM SCRATCH SCENARIO [NAMES]`.
# Two machines, each a network namespace, joined by cables: veth pairs without any bridge.
set -euo pipefail
program=$1 scratch=$2 scenario=$3

mount -t tmpfs none /run && mkdir -p /run/netns # ip netns keeps its names there; ours, not the machine's
mount -t proc none /proc 2>/dev/null || true
for i in 1 2; do
  ip netns add m$i
  ip -n m$i link set lo up
  mkdir -p "$scratch/$i"
done

cable() { # cable NAME1 ADDRESS1 NAME2 ADDRESS2: plugs a cable in at both ends; `-` = no IPv4 address
  ip link add name "$1" netns m1 type veth peer name "$3" netns m2
  for end in "m1 $1 $2" "m2 $3 $4"; do
    set -- $end
    [ "$3" = - ] || ip -n "$1" addr add "$3" dev "$2"
    ip -n "$1" link set dev "$2" up
  done
}
slow() { # slow NAME1 NAME2: a link of 40 Mbit/s
  ip netns exec m1 tc qdisc add dev "$1" root tbf rate 40mbit burst 16kb latency 100ms
  ip netns exec m2 tc qdisc add dev "$2" root tbf rate 40mbit burst 16kb latency 100ms
}
on() { # on MACHINE COMMAND...: the mesh command on a machine
  local i=$1; shift
  ip netns exec m$i env HOME="$scratch/$i" MESH_STATE_DIR="$scratch/$i/state" "$program" "$@"
}
fail() {
  echo "FAILED: $*"
  for i in 1 2; do
    echo "--- machine $i"
    cat "$scratch/$i/out" 2>/dev/null
    ip -n m$i addr
    on $i links 2>&1 || true
    on $i status 2>&1 || true
  done
  exit 1
}
wait_for() { # wait_for SECONDS WHAT COMMAND...
  local end=$((SECONDS + $1)) what=$2; shift 2
  until "$@"; do
    [ $SECONDS -lt $end ] || fail "$what"
    sleep 0.1
  done
}
sees() { [ "$(on "$1" status --json 2>/dev/null | grep -c '"health": "up"' || true)" = "$2" ]; }
best() { on "$1" links 2>/dev/null | awk '$1 == "*" { print $3 "-" $5 }'; }     # HERE-THERE of the link that is used
lane_on() { on "$1" links 2>/dev/null | awk '/lane/ { print $1 == "*" ? $3 "-" $5 : $2 "-" $4 }'; } # .. that a lane is on
links_up() { on "$1" links 2>/dev/null | awk '$0 ~ / up / { count++ } END { print count + 0 }'; }
has_links() { [ "$(links_up "$1")" = "$2" ]; }
agreed() { [ "$(best 1)" = "$1" ] && [ "$(best 2)" = "${1#*-}-${1%-*}" ]; }       # both ends, seen from machine 1
carried() { [ "$(lane_on 1)" = "$1" ] && [ "$(lane_on 2)" = "${1#*-}-${1%-*}" ]; }
join() {
  local token
  token=$(on 1 token --new --mesh cables)
  for i in 1 2; do
    on $i join "$token" --name machine-$i --threads 1 --memory 256M "${peer[@]}" >"$scratch/$i/out" 2>&1 &
    eval "pid$i=$!"
  done
  for i in 1 2; do wait_for 10 "machine $i sees two" sees $i 2; done
}
deploy() { on 2 deploy builtin:story --split 2 --wait --timeout-s 60 >/dev/null || fail "deploy"; }
tell() { # tell MACHINE: a story, the same one always
  local story
  story=$(timeout 20 "$program" --version >/dev/null && on "$1" run builtin:story "Tell me a story about a robot." --temperature 0) || return 1
  case $story in "There once lived a small robot called Luna."*"ask for help.") ;; *) echo "told: $story"; return 1 ;; esac
}
stories() { for i in 1 2; do tell $i || fail "machine $i does not answer"; done; }
starts() { for i in 1 2; do kill -0 "$(eval echo "\$pid$i")" || fail "machine $i has ended"; done; }
peer=()

case $scenario in
names) # F3: a slow LAN and a quick cable, under names that make each side prefer another one
  set -- $4 # LAN's name at 1 and 2, the cable's at 1 and 2
  cable "$1" 10.77.0.1/24 "$2" 10.77.0.2/24
  slow "$1" "$2"
  cable "$3" 169.254.3.1/16 "$4" 169.254.9.9/16
  join
  wait_for 10 "both ends agree on the cable $3-$4" agreed "$3-$4"
  deploy
  stories
  wait_for 5 "the lane is on the cable" carried "$3-$4"
  ;;
crossed) # F18: two cables, names crossed, all addresses of one network
  cable if6 169.254.1.6/16 if7 169.254.2.7/16
  cable if7 169.254.1.7/16 if6 169.254.2.6/16
  slow if7 if6
  join
  wait_for 10 "both ends agree on the quicker cable" agreed if6-if7
  wait_for 10 "one peer with two links, seen from 1" has_links 1 2
  wait_for 10 "one peer with two links, seen from 2" has_links 2 2
  deploy
  stories
  wait_for 5 "the lane is on the quicker cable" carried if6-if7
  ;;
cut) # F15: the cable in use is pulled while stories are told; it comes back
  cable a 169.254.1.1/16 a 169.254.2.1/16
  cable b 10.77.0.1/24 b 10.77.0.2/24
  slow b b
  join
  wait_for 10 "both ends agree" agreed a-a
  deploy
  wait_for 10 "the lane is on the quick cable" carried a-a
  ( while :; do
      start=$(date +%s%N)
      if tell 1 >/dev/null 2>&1; then said=ok; else said=error; fi
      echo "$said $((($(date +%s%N) - start) / 1000000))" >>"$scratch/told"
    done ) &
  telling=$!
  sleep 1.5
  ip -n m1 link set dev a down
  sleep 6
  kill $telling; wait $telling 2>/dev/null || true
  [ "$(grep -c error "$scratch/told" || true)" -le 2 ] || fail "more than the story under way was lost: $(cat "$scratch/told")"
  awk '$2 > 7000 { exit 1 }' "$scratch/told" || fail "a story took too long: $(cat "$scratch/told")"
  [ "$(tail -1 "$scratch/told" | cut -d' ' -f1)" = ok ] || fail "stories do not go on: $(cat "$scratch/told")"
  stories
  wait_for 5 "the lane is on the other cable" carried b-b
  starts
  ip -n m1 link set dev a up
  wait_for 40 "the lane is back on the quick cable" carried a-a
  stories
  ;;
deaf) # the link in use swallows everything from one moment to the next, and nothing shows it but silence
  cable a 169.254.1.1/16 a 169.254.2.1/16
  cable b 10.77.0.1/24 b 10.77.0.2/24
  slow b b
  join
  wait_for 10 "both ends agree" agreed a-a
  deploy
  wait_for 10 "the lane is on the quick cable" carried a-a
  ( while :; do
      start=$(date +%s%N)
      if tell 1 >/dev/null 2>&1; then said=ok; else said=error; fi
      echo "$said $((($(date +%s%N) - start) / 1000000))" >>"$scratch/told"
    done ) &
  telling=$!
  sleep 1.5
  for i in 1 2; do ip netns exec m$i tc qdisc add dev a root tbf rate 8kbit burst 1 limit 1; done
  sleep 12
  kill $telling; wait $telling 2>/dev/null || true
  awk '$2 > 8000 { exit 1 }' "$scratch/told" || fail "a story took too long: $(cat "$scratch/told")"
  [ "$(tail -1 "$scratch/told" | cut -d' ' -f1)" = ok ] || fail "stories do not go on: $(cat "$scratch/told")"
  stories
  wait_for 5 "the lane is on the other cable" carried b-b
  starts
  ;;
later) # F4: the mesh works over a slow LAN; then a cable is plugged in
  cable lan 10.77.0.1/24 lan 10.77.0.2/24
  slow lan lan
  join
  deploy
  stories
  wait_for 10 "the lane is on the LAN" carried lan-lan
  cable tb0 169.254.3.1/16 tb1 169.254.9.9/16
  wait_for 10 "the lane is on the new cable" carried tb0-tb1
  stories
  starts
  ;;
nic) # F17: a new interface with a better default route appears while stories are told
  cable a 10.77.0.1/24 a 10.77.0.2/24
  join
  deploy
  stories
  wait_for 10 "the lane is on the cable" carried a-a
  ( for _ in 1 2 3 4 5 6 7 8; do tell 1 || exit 1; done ) &
  telling=$!
  for i in 1 2; do
    ip -n m$i link add name new$i type veth peer name behind$i
    ip -n m$i link set behind$i up
    ip -n m$i addr add 192.168.$i.1/24 dev new$i
    ip -n m$i link set new$i up
    ip -n m$i route add default via 192.168.$i.254 dev new$i metric 1
  done
  wait $telling || fail "a story was disturbed by a new interface"
  sleep 3
  wait_for 5 "the lane is still there" carried a-a
  stories
  starts
  ;;
fe80) # a cable with nothing but link-local IPv6 addresses, beside a slow LAN
  cable lan 10.77.0.1/24 lan 10.77.0.2/24
  slow lan lan
  cable tb0 - tb1 -
  join
  wait_for 12 "both ends agree on the cable" agreed tb0-tb1
  deploy
  stories
  wait_for 5 "the lane is on the cable" carried tb0-tb1
  ;;
bridge) # F1: a container bridge with the same address on both machines is no link
  cable eth0 10.77.0.1/24 eth0 10.77.0.2/24
  for i in 1 2; do
    ip -n m$i link add docker0 type bridge
    ip -n m$i addr add 172.17.0.1/16 dev docker0
    ip -n m$i link add c0 type veth peer name c1
    ip -n m$i link set c0 master docker0 up
    ip -n m$i link set c1 up
    ip -n m$i link set docker0 up
  done
  before=$(ip -n m1 -s link show docker0 | awk '/TX:/ { getline; print $2 }')
  join
  wait_for 10 "the wire is the link" agreed eth0-eth0
  deploy
  stories
  for i in 1 2; do
    on $i links --json | grep -q docker0 && [ "$(on $i links | grep -c "docker0.* up ")" != 0 ] && fail "docker0 is a link"
  done
  [ "$(lane_on 1)" = eth0-eth0 ] || fail "the lane is on $(lane_on 1)"
  ;;
*) fail "no such scenario" ;;
esac
exit 0
