#!/bin/sh
# Builds the image from a program that is built already: build.sh PROGRAM TAG [COMMAND…]
#
# PROGRAM becomes /usr/local/bin/raddle, and each COMMAND of this machine is put where it is found here, with the libraries that it needs. The
# result is one image with one layer; nothing is pulled, and the classic builder will do.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
program=$1 tag=$2
shift 2

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
trap 'exit 130' INT TERM
root=$context/root
mkdir -p "$root/usr/local/bin" "$root/etc" "$root/tmp" "$root/run/raddle"

# Copies a file to where it is here, and the file itself where that is a link.
put() {
    mkdir -p "$root$(dirname "$1")"
    cp -L "$1" "$root$1"
}

# What a program is loaded with. One that is linked statically says so, and needs nothing.
libraries() {
    ldd "$1" 2>/dev/null | sed -n -e 's|.*=> \(/[^ ]*\) (.*|\1|p' -e 's|^[[:space:]]*\(/[^ ]*\) (.*|\1|p'
}

cp -L "$program" "$root/usr/local/bin/raddle"
for library in $(libraries "$program"); do put "$library"; done
for command in "$@"; do
    path=$(command -v "$command") || { echo "build.sh: there is no '$command' on this machine" >&2; exit 2; }
    put "$path"
    for library in $(libraries "$path"); do put "$library"; done
done

echo 'root:x:0:0::/:' >"$root/etc/passwd"
echo 'raddle:x:65532:65532::/tmp:' >>"$root/etc/passwd"
printf 'root:x:0:\nraddle:x:65532:\n' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
# For rediss:// servers whose certificate a public authority has signed.
certificates=/etc/ssl/certs/ca-certificates.crt
if [ -r "$certificates" ]; then put "$certificates"; fi
# Whatever the umask is here.
chmod -R u=rwX,go=rX "$root"
chmod 0755 "$root/usr/local/bin/raddle"
chmod 1777 "$root/tmp"

cp "$here/Dockerfile" "$context/Dockerfile"
before=$(docker images --quiet "$tag")
# What the builder says of its own age is of no use to anybody.
if ! DOCKER_BUILDKIT=0 docker build --quiet --network none --tag "$tag" "$context" 2>"$context/said"; then
    cat "$context/said" >&2
    exit 1
fi
# One that had the tag, and nobody uses, would stay for ever without a name.
after=$(docker images --quiet "$tag")
if [ -n "$before" ] && [ "$before" != "$after" ]; then docker rmi "$before" >/dev/null 2>&1 || true; fi
