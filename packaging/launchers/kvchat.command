#!/bin/sh
# Starts kvchat on macOS by a double click; the window shows what the program says.
exec "$(dirname "$0")/kvchat.sh" "$@"
