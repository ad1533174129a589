# What every Wine program of an instance finds in its environment: a prefix of its own, no display, no
# questions about Mono and Gecko, and nothing of the environment the tests run in. Wine takes its own
# programs before ours of the same name unless told otherwise.
export HOME=/root USER=Administrator LOGNAME=Administrator LANG=C.UTF-8
export PATH=/usr/lib/wine:/usr/bin:/usr/sbin:/bin:/sbin
export WINEPREFIX=/prefix WINEDEBUG=-all
export WINEDLLOVERRIDES='mscoree,mshtml,winemenubuilder.exe=;powershell.exe,shutdown.exe,wineboot.exe=n'
