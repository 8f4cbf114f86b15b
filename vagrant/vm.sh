#!/bin/sh
# Boots a Debian kernel in a virtual machine with this machine's file system inside (read-only, writes go to memory) and runs
# the packet tests there, with programs compiled outside. KVM is used where it works, software emulation elsewhere.
#
#   vagrant/vm.sh                          tests/packet, attaching and upgrading, on the kernel of this Debian release
#   vagrant/vm.sh COMMAND...               another command, in the checkout, in the virtual machine
#   KERNEL=trixie vagrant/vm.sh            the kernel of another Debian release: trixie 6.12, bullseye 5.10 (too old: the agent reports it, exit 77)
#   KERNEL=/path/linux-image.deb           another kernel package
#   VM_CPUS=2 VM_MEMORY=2G VM_TIMEOUT=7200 VM_CACHE=/var/cache/lbagent-vm VM_ACCEL=tcg
set -eu

checkout=$(cd "$(dirname "$0")/.." && pwd)
cache=${VM_CACHE:-/var/cache/lbagent-vm}
memory=${VM_MEMORY:-2G}
limit=${VM_TIMEOUT:-7200} # seconds; with emulation on a busy machine an hour may not be enough
# without the tests that fill whole tables: they take an emulated machine most of an hour
[ $# -gt 0 ] || set -- .venv/bin/python -m pytest -p no:cacheprovider --color=no -q --timeout=0 -m "not slow" --ignore tests/packet/test_full.py \
    tests/bpf/load/test_attach.py tests/bpf/load/test_generation.py tests/packet

fail() {
    echo "vm.sh: $*" >&2
    exit 1
}

[ "$(id -u)" = 0 ] || fail "this needs root (it reads the whole file system): sudo make vm-test"
[ "$(uname -m)" = x86_64 ] || fail "only x86_64 hosts are supported"

missing=
for package in qemu-system-x86 busybox-static cpio kmod; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' $package 2>/dev/null)" = installed ] || missing="$missing $package"
done
if [ -n "$missing" ]; then
    echo "== apt: installing$missing" >&2
    apt-get -qq update
    # shellcheck disable=SC2086 # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install $missing >/dev/null
fi

# --- the kernel: Debian's package, unpacked, never installed ---
mkdir -p "$cache"

# Prints apt's options for another release, with separate lists, from the mirrors of this machine.
other_release() {
    own=$(. /etc/os-release && echo "$VERSION_CODENAME")
    lists=$cache/apt-$1
    mkdir -p "$lists/lists/partial" "$lists/cache/archives/partial"
    # shellcheck disable=SC2016 # apt's own words
    apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        sed -nE "s/ $own(-security)? main\$/ $1\1 main/p" >"$lists/sources.list"
    [ -s "$lists/sources.list" ] || fail "KERNEL=$1 needs Debian's mirrors; set KERNEL=/path/to/linux-image.deb"
    echo "-o Dir::Etc::sourcelist=$lists/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$lists/lists -o Dir::Cache=$lists/cache"
}

deb=${KERNEL:-}
case $deb in
*.deb) ;;
*)
    options=
    if [ -n "$deb" ]; then
        options=$(other_release "$deb")
        # shellcheck disable=SC2086 # words
        apt-get -qq $options update || fail "apt-get update failed for $deb"
    fi
    # shellcheck disable=SC2086 # words
    package=$(apt-cache $options depends linux-image-amd64 | awk '/Depends: linux-image-/ {print $2; exit}')
    [ -n "$package" ] || fail "apt does not know linux-image-amd64; set KERNEL=/path/to/linux-image.deb"
    deb=$(find "$cache" -maxdepth 1 -name "${package}_*.deb" | head -n1)
    if [ -z "$deb" ]; then
        echo "== downloading $package" >&2
        # shellcheck disable=SC2086 # words
        (cd "$cache" && apt-get -qq -o APT::Sandbox::User=root $options download "$package")
        deb=$(find "$cache" -maxdepth 1 -name "${package}_*.deb" | head -n1)
    fi
    ;;
esac
tree=$cache/$(basename "$deb" .deb)
if [ ! -e "$tree/ready" ]; then
    rm -rf "$tree"
    dpkg-deb -x "$deb" "$tree"
    [ -d "$tree/lib/modules" ] || ln -s usr/lib "$tree/lib" # Debian 13
    depmod -b "$tree" "$(ls "$tree/lib/modules")"
    touch "$tree/ready"
fi
release=$(ls "$tree/lib/modules")
kernel=$tree/boot/vmlinuz-$release

# --- the first file system: busybox, the modules that reach the host's files, and /init ---
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
mkdir -p "$work/root/bin" "$work/root/modules"
cp /bin/busybox "$work/root/bin/busybox"
for module in virtio_pci 9pnet_virtio 9p overlay; do
    modprobe -d "$tree" -S "$release" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' >"$work/modules"
number=100
while read -r path; do
    cp "$path" "$work/root/modules/$number-$(basename "$path")"
    number=$((number + 1))
done <"$work/modules"

quoted=
for word in "$@"; do
    quoted="$quoted '$(printf %s "$word" | sed "s/'/'\\\\''/g")'"
done

cat >"$work/root/init" <<EOF
#!/bin/busybox sh
b=/bin/busybox
\$b mkdir -p /proc /sys /dev /host /rw /new
\$b mount -t proc proc /proc
\$b mount -t sysfs sys /sys
\$b mount -t devtmpfs dev /dev
for m in /modules/*; do \$b insmod \$m; done
\$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /host || \$b poweroff -f
\$b mount -t tmpfs -o size=75% rw /rw
\$b mkdir /rw/upper /rw/work
\$b mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work overlay /new || \$b poweroff -f
\$b cp /inside /new/.lbagent-vm
for d in proc sys dev; do \$b mount --move /\$d /new/\$d; done
exec \$b switch_root /new /bin/sh /.lbagent-vm
EOF
cat >"$work/root/inside" <<EOF
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
mount -t tmpfs run /run
cp /bin/busybox /run/busybox # available after the host's files are unmounted
mkdir -p /dev/pts /dev/shm; mount -t devpts devpts /dev/pts; mount -t tmpfs shm /dev/shm
mount -t bpf bpf /sys/fs/bpf
mkdir -p /lib/modules/$release && mount --bind '$tree/lib/modules/$release' /lib/modules/$release
ip link set lo up
ulimit -l unlimited
cd '$checkout'
echo "== Linux \$(uname -r), \$(nproc) CPU"
$quoted
echo "lbagent-vm: exit \$?"
sync
exec /run/busybox poweroff -f
EOF
chmod +x "$work/root/init"
(cd "$work/root" && find . | cpio -o -H newc --quiet) >"$work/initrd"

# --- run it ---
accel=${VM_ACCEL:-}
if [ -z "$accel" ]; then
    # /dev/kvm may exist and not work (a virtual machine without nesting): boot until a word is printed
    accel=tcg
    if [ -w /dev/kvm ]; then
        mkdir -p "$work/probe/bin"
        cp /bin/busybox "$work/probe/bin/busybox"
        printf '#!/bin/busybox sh\necho kvm-works\n/bin/busybox poweroff -f\n' >"$work/probe/init"
        chmod +x "$work/probe/init"
        (cd "$work/probe" && find . | cpio -o -H newc --quiet) >"$work/probe.initrd"
        if timeout 20 qemu-system-x86_64 -accel kvm -cpu host -m 512M -nodefaults -no-reboot -display none -serial stdio \
            -kernel "$kernel" -initrd "$work/probe.initrd" -append "console=ttyS0 quiet panic=-1" </dev/null 2>/dev/null |
            grep -q kvm-works; then
            accel=kvm
        fi
    fi
fi
# two emulated CPUs crash qemu 7.2 in code the kernel patches while it runs; its cmpxchg16b is broken as well
case $accel in
kvm) cpu="-cpu host -smp ${VM_CPUS:-2}" ;;
*) cpu="-cpu Haswell,-cx16,-pcid,-x2apic,-tsc-deadline,-hle,-invpcid,-rtm -smp 1" ;;
esac
echo "== booting $release ($accel); this takes $([ "$accel" = kvm ] && echo seconds || echo minutes)" >&2
# shellcheck disable=SC2086 # words
timeout "$limit" qemu-system-x86_64 -accel "$accel" $cpu -m "$memory" -nodefaults -no-reboot -display none -serial stdio \
    -kernel "$kernel" -initrd "$work/initrd" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off" \
    -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
    </dev/null 2>&1 | stdbuf -oL tr -d '\r' | tee "$work/log" || true
status=$(sed -n 's/^lbagent-vm: exit //p' "$work/log" | tail -n1)
[ -n "$status" ] || fail "the machine ended without a result (limit ${limit} s)"
exit "$status"
