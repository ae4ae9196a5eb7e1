#!/bin/sh
# Installs the real peers that the tests talk to: an MQTT broker, CoAP client and server, and Node for the JavaScript
# client; a browser; an SFTP server and Java for the fleet; and what the fault tier needs: a library that fakes the wall
# clock. Root only; others are told.
set -eu
missing=""
command -v mosquitto >/dev/null 2>&1 || [ -x /usr/sbin/mosquitto ] || missing="$missing mosquitto"
command -v mosquitto_pub >/dev/null 2>&1 || missing="$missing mosquitto-clients"
command -v coap-client-notls >/dev/null 2>&1 || command -v coap-client >/dev/null 2>&1 || missing="$missing libcoap3-bin"
command -v openssl >/dev/null 2>&1 || missing="$missing openssl"
command -v curl >/dev/null 2>&1 || missing="$missing curl"
command -v node >/dev/null 2>&1 || missing="$missing nodejs"
command -v npm >/dev/null 2>&1 || missing="$missing npm"
command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
command -v chromedriver >/dev/null 2>&1 || missing="$missing chromium-driver"
command -v faketime >/dev/null 2>&1 || missing="$missing faketime"
# Where services start by themselves nobody wants this one for a test.
[ -x /usr/sbin/sshd ] || [ -d /run/systemd/system ] || missing="$missing openssh-server"
command -v java >/dev/null 2>&1 || missing="$missing openjdk-17-jre-headless"
command -v systemd-analyze >/dev/null 2>&1 || missing="$missing systemd"
command -v ssh-keygen >/dev/null 2>&1 || missing="$missing openssh-client"
command -v wpa_supplicant >/dev/null 2>&1 || [ -x /usr/sbin/wpa_supplicant ] || missing="$missing wpasupplicant"
command -v cpio >/dev/null 2>&1 || missing="$missing cpio"
command -v shellcheck >/dev/null 2>&1 || missing="$missing shellcheck"
command -v zsh >/dev/null 2>&1 || missing="$missing zsh"
command -v fish >/dev/null 2>&1 || missing="$missing fish"
command -v mandoc >/dev/null 2>&1 || missing="$missing mandoc"
command -v systemd-nspawn >/dev/null 2>&1 || missing="$missing systemd-container"
command -v mmdebstrap >/dev/null 2>&1 || missing="$missing mmdebstrap"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "tests of real components are skipped until these packages are installed:$missing"
  exit 0
fi
echo "installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# Broker and SSH server are started by the tests, not by the system.
apt-get install -y -qq --no-install-recommends $missing >/dev/null
