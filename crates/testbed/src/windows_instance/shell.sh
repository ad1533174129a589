# What sshd runs for whoever logs in: SFTP, one command, or cmd.
. /machine/env.sh
cd "/C:/users/$USER"
case ${SSH_ORIGINAL_COMMAND-} in
    internal-sftp | */sftp-server) exec /usr/lib/openssh/sftp-server -d "/C:/users/$USER" ;;
    '') exec setarch -R wine64 cmd ;;
    *) exec setarch -R wine64 'C:\windows\system32\ssh-shell.exe' ;;
esac
