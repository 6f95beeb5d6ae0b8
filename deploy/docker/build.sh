#!/bin/sh
# Builds the image from an existing program: build.sh PROGRAM TAG [COMMAND…]
#
# PROGRAM becomes /usr/local/bin/raddle, and each COMMAND of this machine is copied to the same path, with its libraries. The
# result is an image with one layer; nothing is pulled, and the classic builder is enough.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
program=$1 tag=$2
shift 2

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
trap 'exit 130' INT TERM
root=$context/root
mkdir -p "$root/usr/local/bin" "$root/etc" "$root/tmp" "$root/run/raddle"

# Copies a file to the same path, and follows symlinks.
put() {
    mkdir -p "$root$(dirname "$1")"
    cp -L "$1" "$root$1"
}

# The libraries of a program. A static one has none.
libraries() {
    ldd "$1" 2>/dev/null | sed -n -e 's|.*=> \(/[^ ]*\) (.*|\1|p' -e 's|^[[:space:]]*\(/[^ ]*\) (.*|\1|p'
}

cp -L "$program" "$root/usr/local/bin/raddle"
for library in $(libraries "$program"); do put "$library"; done
for command in "$@"; do
    path=$(command -v "$command") || { echo "build.sh: command '$command' not found on this machine" >&2; exit 2; }
    put "$path"
    for library in $(libraries "$path"); do put "$library"; done
done

echo 'root:x:0:0::/:' >"$root/etc/passwd"
echo 'raddle:x:65532:65532::/tmp:' >>"$root/etc/passwd"
printf 'root:x:0:\nraddle:x:65532:\n' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
# For rediss:// servers with a certificate of a public CA.
certificates=/etc/ssl/certs/ca-certificates.crt
if [ -r "$certificates" ]; then put "$certificates"; fi
# Independent of the umask.
chmod -R u=rwX,go=rX "$root"
chmod 0755 "$root/usr/local/bin/raddle"
chmod 1777 "$root/tmp"

cp "$here/Dockerfile" "$context/Dockerfile"
before=$(docker images --quiet "$tag")
# The classic builder prints a deprecation warning, which is shown only after an error.
if ! DOCKER_BUILDKIT=0 docker build --quiet --network none --tag "$tag" "$context" 2>"$context/errors"; then
    cat "$context/errors" >&2
    exit 1
fi
# Remove the image that had the tag before, which would stay without a name.
after=$(docker images --quiet "$tag")
if [ -n "$before" ] && [ "$before" != "$after" ]; then docker rmi "$before" >/dev/null 2>&1 || true; fi
