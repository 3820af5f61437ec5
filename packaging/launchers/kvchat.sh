#!/bin/sh
# Starts kvchat on Linux and macOS: finds a Python, 3.11 or newer, and hands over to app.py.
here=$(cd "$(dirname "$(readlink -f "$0" 2>/dev/null || echo "$0")")" && pwd)
app="$here/../../app.py"
for python in python3 python3.13 python3.12 python3.11 python3.14 /opt/homebrew/bin/python3 python; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        exec "$python" "$app" "$@"
    fi
done
case "${LC_ALL:-${LC_MESSAGES:-${LANG:-}}}" in
ko*) echo "kvchat에는 파이썬 3.11 이상이 필요합니다. 설치한 뒤 다시 시작하세요." ;;
*) echo "kvchat needs Python 3.11 or newer. Install it and start this again." ;;
esac
echo "  Debian, Ubuntu: sudo apt install python3 python3-venv"
echo "  Fedora: sudo dnf install python3"
echo "  macOS, others: https://www.python.org/downloads/"
exit 1
