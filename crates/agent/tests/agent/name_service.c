// A name service of a machine whose users stand in no file that others read.
#define _GNU_SOURCE
#include <errno.h>
#include <nss.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>

static enum nss_status find(const char *name, uid_t uid, struct passwd *found, char *buffer, size_t length, int *error) {
    FILE *users = fopen("/srv/users", "re");
    if (!users) return NSS_STATUS_UNAVAIL;
    struct passwd *entry;
    int ended;
    while (!(ended = fgetpwent_r(users, found, buffer, length, &entry)))
        if (name ? !strcmp(entry->pw_name, name) : entry->pw_uid == uid) break;
    fclose(users);
    if (!ended) return NSS_STATUS_SUCCESS;
    *error = ended;
    return ended == ERANGE ? NSS_STATUS_TRYAGAIN : NSS_STATUS_NOTFOUND;
}

enum nss_status _nss_evenkeel_getpwnam_r(const char *name, struct passwd *found, char *buffer, size_t length, int *error) {
    return find(name, 0, found, buffer, length, error);
}

enum nss_status _nss_evenkeel_getpwuid_r(uid_t uid, struct passwd *found, char *buffer, size_t length, int *error) {
    return find(NULL, uid, found, buffer, length, error);
}
