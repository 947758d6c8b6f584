#!/usr/bin/env bash
# Makes the development certificates of this folder anew. Needs openssl only.
#
#   certs/make.sh [DIR]     writes into DIR (default: this folder)
#
# The private keys are published with the source: see README.md. Never serve anybody with them.
set -euo pipefail

dir=${1:-$(cd "$(dirname "$0")" && pwd)}
days=3650
names='DNS:localhost,DNS:chat.test,DNS:other.test,DNS:*.wild.test,IP:127.0.0.1,IP:::1'

mkdir -p "$dir"

# make NAME COMMON_NAME SUBJECT_ALT_NAMES OPENSSL_KEY_OPTIONS...
make() {
  local name=$1 cn=$2 san=$3
  shift 3
  openssl req -x509 "$@" -nodes -sha256 -days "$days" \
    -keyout "$dir/$name.key.pem" -out "$dir/$name.cert.pem" \
    -subj "/O=Vestibule development, NOT A SECRET/CN=$cn" \
    -addext "subjectAltName=$san" \
    -addext 'basicConstraints=critical,CA:FALSE' \
    -addext 'keyUsage=critical,digitalSignature' \
    -addext 'extendedKeyUsage=serverAuth,clientAuth' 2>/dev/null
  chmod 644 "$dir/$name.key.pem" "$dir/$name.cert.pem"
  echo "$dir/$name.cert.pem  $dir/$name.key.pem"
}

# One per kind of key, all for the same names.
make ecdsa localhost "$names" -newkey ec -pkeyopt ec_paramgen_curve:P-256
make rsa localhost "$names" -newkey rsa:2048
make ed25519 localhost "$names" -newkey ed25519

# One name each, so that the choice by SNI can be seen.
make chat.test chat.test 'DNS:chat.test' -newkey ec -pkeyopt ec_paramgen_curve:P-256
make wild.test '*.wild.test' 'DNS:*.wild.test' -newkey ec -pkeyopt ec_paramgen_curve:P-256
