/* The C library for Java: org.bivouac.hadoop.Native says what each function is for. */
#include <bivouac.h>
#include <errno.h>
#include <grp.h>
#include <jni.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NATIVE(type, name) JNIEXPORT type JNICALL Java_org_bivouac_hadoop_Native_##name
#define OF(pointer) ((void *)(intptr_t)(pointer))

enum { INODE, SIZE, ALLOCATED, ACCESSED, MODIFIED, MODE, LINKS, USER, GROUP, BLOCK_SIZE, COPIES, CREATED, ATTRIBUTES };

static jclass errno_class, list_class;
static jmethodID errno_made, list_add;

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM *vm, void *unused)
{
    (void)unused;
    JNIEnv *env;
    if ((*vm)->GetEnv(vm, (void **)&env, JNI_VERSION_1_8) != JNI_OK)
        return JNI_ERR;
    jclass errno_local = (*env)->FindClass(env, "org/bivouac/hadoop/Native$Errno");
    jclass list_local = (*env)->FindClass(env, "java/util/List");
    if (errno_local == NULL || list_local == NULL)
        return JNI_ERR;
    errno_class = (*env)->NewGlobalRef(env, errno_local);
    list_class = (*env)->NewGlobalRef(env, list_local);
    errno_made = (*env)->GetMethodID(env, errno_class, "<init>", "(ILjava/lang/String;)V");
    list_add = (*env)->GetMethodID(env, list_class, "add", "(Ljava/lang/Object;)Z");
    return errno_made == NULL || list_add == NULL ? JNI_ERR : JNI_VERSION_1_8;
}

/* A Java string of bytes, which may be no valid UTF-8 (then what is not is replaced): Java's own decoder makes it. */
static jstring to_java(JNIEnv *env, const char *bytes, size_t length)
{
    static jclass string_class;
    static jmethodID made;
    static jobject utf8;
    if (utf8 == NULL) {
        jclass found = (*env)->FindClass(env, "java/lang/String");
        jclass charsets = (*env)->FindClass(env, "java/nio/charset/StandardCharsets");
        jfieldID field = (*env)->GetStaticFieldID(env, charsets, "UTF_8", "Ljava/nio/charset/Charset;");
        string_class = (*env)->NewGlobalRef(env, found);
        made = (*env)->GetMethodID(env, string_class, "<init>", "([BLjava/nio/charset/Charset;)V");
        utf8 = (*env)->NewGlobalRef(env, (*env)->GetStaticObjectField(env, charsets, field));
    }
    int is_plain = 1;
    for (size_t i = 0; i < length; i++)
        is_plain &= bytes[i] > 0;
    if (is_plain && bytes[length] == 0)
        return (*env)->NewStringUTF(env, bytes);
    jbyteArray array = (*env)->NewByteArray(env, (jsize)length);
    if (array == NULL)
        return NULL;
    (*env)->SetByteArrayRegion(env, array, 0, (jsize)length, (const jbyte *)bytes);
    jstring string = (*env)->NewObject(env, string_class, made, array, utf8);
    (*env)->DeleteLocalRef(env, array);
    return string;
}

static void raise_errno(JNIEnv *env, int number, const char *text)
{
    jstring message = to_java(env, text, strlen(text));
    if (message == NULL)
        return;
    jobject thrown = (*env)->NewObject(env, errno_class, errno_made, number, message);
    if (thrown != NULL)
        (*env)->Throw(env, thrown);
}

/* Throws if a call has failed; what it returned. */
static jlong checked(JNIEnv *env, int64_t result)
{
    if (result < 0)
        raise_errno(env, (int)-result, bivouac_error());
    return result;
}

/* A string as UTF-8 (not Java's own variant of it): to be freed. NULL: an exception is thrown. */
static char *to_c(JNIEnv *env, jstring string)
{
    if (string == NULL) {
        raise_errno(env, EINVAL, "a null was given for a string");
        return NULL;
    }
    jsize length = (*env)->GetStringLength(env, string);
    char *text = malloc(3 * (size_t)length + 1), *at = text;
    const jchar *units = text == NULL ? NULL : (*env)->GetStringCritical(env, string, NULL);
    if (units == NULL) {
        free(text);
        raise_errno(env, ENOMEM, "no memory is left");
        return NULL;
    }
    int has_nul = 0;
    for (jsize i = 0; i < length; i++) {
        uint32_t c = units[i];
        if (c >= 0xd800 && c < 0xdc00 && i + 1 < length && units[i + 1] >= 0xdc00 && units[i + 1] < 0xe000)
            c = 0x10000 + ((c - 0xd800) << 10) + (units[++i] - 0xdc00);
        else if (c >= 0xd800 && c < 0xe000)
            c = '?';
        has_nul |= c == 0;
        if (c < 0x80) {
            *at++ = (char)c;
        } else if (c < 0x800) {
            *at++ = (char)(0xc0 | c >> 6);
            *at++ = (char)(0x80 | (c & 0x3f));
        } else if (c < 0x10000) {
            *at++ = (char)(0xe0 | c >> 12);
            *at++ = (char)(0x80 | (c >> 6 & 0x3f));
            *at++ = (char)(0x80 | (c & 0x3f));
        } else {
            *at++ = (char)(0xf0 | c >> 18);
            *at++ = (char)(0x80 | (c >> 12 & 0x3f));
            *at++ = (char)(0x80 | (c >> 6 & 0x3f));
            *at++ = (char)(0x80 | (c & 0x3f));
        }
    }
    *at = 0;
    (*env)->ReleaseStringCritical(env, string, units);
    if (has_nul) {
        free(text);
        raise_errno(env, EINVAL, "a name with a NUL in it");
        return NULL;
    }
    return text;
}

/* Runs a call on one path. */
#define WITH(path, call)                     \
    char *text = to_c(env, path);            \
    if (text != NULL) {                      \
        checked(env, (call));                \
        free(text);                          \
    }

static void shown(const struct bivouac_stat *stat, jlong *into)
{
    into[INODE] = (jlong)stat->inode;
    into[SIZE] = (jlong)stat->size;
    into[ALLOCATED] = (jlong)stat->allocated;
    into[ACCESSED] = stat->accessed;
    into[MODIFIED] = stat->modified;
    into[MODE] = stat->mode;
    into[LINKS] = stat->links;
    into[USER] = stat->user;
    into[GROUP] = stat->group;
    into[BLOCK_SIZE] = stat->block_size;
    into[COPIES] = stat->copies;
    into[CREATED] = stat->created;
}

NATIVE(jstring, version)(JNIEnv *env, jclass class)
{
    (void)class;
    return (*env)->NewStringUTF(env, bivouac_version());
}

NATIVE(jlong, attach)(JNIEnv *env, jclass class, jstring name, jstring key)
{
    (void)class;
    bivouac_t *deployment = NULL;
    char *named = NULL, *digits = NULL;
    if (name != NULL && (named = to_c(env, name)) == NULL)
        return 0;
    if (key == NULL || (digits = to_c(env, key)) != NULL)
        checked(env, digits == NULL ? bivouac_attach(named, &deployment) : bivouac_attach_with_key(named, digits, &deployment));
    free(named);
    free(digits);
    return (jlong)(intptr_t)deployment;
}

NATIVE(void, detach)(JNIEnv *env, jclass class, jlong deployment)
{
    (void)env, (void)class;
    bivouac_detach(OF(deployment));
}

NATIVE(jstring, mount)(JNIEnv *env, jclass class, jlong deployment)
{
    (void)class;
    const char *mount = bivouac_mount_path(OF(deployment));
    return to_java(env, mount, strlen(mount));
}

NATIVE(jstring, host)(JNIEnv *env, jclass class, jlong deployment)
{
    (void)class;
    const char *host = bivouac_host(OF(deployment));
    return to_java(env, host, strlen(host));
}

NATIVE(void, statfs)(JNIEnv *env, jclass class, jlong deployment, jlongArray space)
{
    (void)class;
    struct bivouac_space found;
    if (checked(env, bivouac_statfs(OF(deployment), &found)) < 0)
        return;
    jlong numbers[] = {(jlong)found.total, (jlong)found.available, (jlong)found.files, found.block_size};
    (*env)->SetLongArrayRegion(env, space, 0, 4, numbers);
}

NATIVE(jlong, open)(JNIEnv *env, jclass class, jlong deployment, jstring path, jint flags, jint mode)
{
    (void)class;
    bivouac_file_t *file = NULL;
    WITH(path, bivouac_open(OF(deployment), text, flags, (mode_t)mode, &file))
    return (jlong)(intptr_t)file;
}

NATIVE(jlong, openInode)(JNIEnv *env, jclass class, jlong deployment, jlong inode, jint flags)
{
    (void)class;
    bivouac_file_t *file = NULL;
    checked(env, bivouac_open_inode(OF(deployment), (uint64_t)inode, flags, &file));
    return (jlong)(intptr_t)file;
}

NATIVE(void, close)(JNIEnv *env, jclass class, jlong file)
{
    (void)class;
    checked(env, bivouac_close(OF(file)));
}

NATIVE(jint, pread)(JNIEnv *env, jclass class, jlong file, jobject direct, jint at, jint length, jlong offset)
{
    (void)class;
    char *memory = (*env)->GetDirectBufferAddress(env, direct);
    if (memory == NULL) {
        raise_errno(env, EINVAL, "the buffer is not a direct one");
        return -1;
    }
    return (jint)checked(env, bivouac_pread(OF(file), memory + at, (size_t)length, offset));
}

NATIVE(jint, pwrite)(JNIEnv *env, jclass class, jlong file, jobject direct, jint at, jint length, jlong offset)
{
    (void)class;
    char *memory = (*env)->GetDirectBufferAddress(env, direct);
    if (memory == NULL) {
        raise_errno(env, EINVAL, "the buffer is not a direct one");
        return -1;
    }
    return (jint)checked(env, bivouac_pwrite(OF(file), memory + at, (size_t)length, offset));
}

NATIVE(jlong, append)(JNIEnv *env, jclass class, jlong file, jobject direct, jint at, jint length)
{
    (void)class;
    char *memory = (*env)->GetDirectBufferAddress(env, direct);
    int64_t end = 0;
    if (memory == NULL) {
        raise_errno(env, EINVAL, "the buffer is not a direct one");
        return -1;
    }
    ssize_t count = bivouac_append(OF(file), memory + at, (size_t)length, &end);
    if (checked(env, count) >= 0 && count < length)
        raise_errno(env, ENOSPC, "the storage is full");
    return end;
}

NATIVE(void, sync)(JNIEnv *env, jclass class, jlong file)
{
    (void)class;
    checked(env, bivouac_sync(OF(file)));
}

NATIVE(void, fstat)(JNIEnv *env, jclass class, jlong file, jlongArray attributes)
{
    (void)class;
    struct bivouac_stat stat;
    jlong numbers[ATTRIBUTES];
    if (checked(env, bivouac_fstat(OF(file), &stat)) < 0)
        return;
    shown(&stat, numbers);
    (*env)->SetLongArrayRegion(env, attributes, 0, ATTRIBUTES, numbers);
}

NATIVE(void, stat)(JNIEnv *env, jclass class, jlong deployment, jstring path, jboolean follow, jlongArray attributes)
{
    (void)class;
    struct bivouac_stat stat;
    jlong numbers[ATTRIBUTES];
    char *text = to_c(env, path);
    if (text == NULL)
        return;
    int result = bivouac_stat(OF(deployment), text, follow, &stat);
    free(text);
    if (checked(env, result) < 0)
        return;
    shown(&stat, numbers);
    (*env)->SetLongArrayRegion(env, attributes, 0, ATTRIBUTES, numbers);
}

NATIVE(void, access)(JNIEnv *env, jclass class, jlong deployment, jstring path, jint mask)
{
    (void)class;
    WITH(path, bivouac_access(OF(deployment), text, mask))
}

NATIVE(void, truncate)(JNIEnv *env, jclass class, jlong deployment, jstring path, jlong length)
{
    (void)class;
    WITH(path, bivouac_truncate(OF(deployment), text, length))
}

NATIVE(void, chmod)(JNIEnv *env, jclass class, jlong deployment, jstring path, jint mode)
{
    (void)class;
    WITH(path, bivouac_chmod(OF(deployment), text, (mode_t)mode))
}

NATIVE(void, chown)(JNIEnv *env, jclass class, jlong deployment, jstring path, jint user, jint group)
{
    (void)class;
    WITH(path, bivouac_chown(OF(deployment), text, (uid_t)user, (gid_t)group, 1))
}

NATIVE(void, utimes)(JNIEnv *env, jclass class, jlong deployment, jstring path, jlong accessed, jlong modified)
{
    (void)class;
    WITH(path, bivouac_utimes(OF(deployment), text, accessed, modified, 1))
}

NATIVE(jbyteArray, getxattr)(JNIEnv *env, jclass class, jlong deployment, jstring path, jstring name)
{
    (void)class;
    enum { MOST = 64 << 10 };
    char *text = to_c(env, path), *named = text == NULL ? NULL : to_c(env, name), *value = malloc(MOST);
    jbyteArray array = NULL;
    if (text != NULL && named != NULL) {
        ssize_t length = value == NULL ? -ENOMEM : bivouac_getxattr(OF(deployment), text, named, value, MOST);
        if (checked(env, length) >= 0 && (array = (*env)->NewByteArray(env, (jsize)length)) != NULL)
            (*env)->SetByteArrayRegion(env, array, 0, (jsize)length, (jbyte *)value);
    }
    free(text);
    free(named);
    free(value);
    return array;
}

NATIVE(void, setxattr)
(JNIEnv *env, jclass class, jlong deployment, jstring path, jstring name, jbyteArray value, jint flags)
{
    (void)class;
    jsize length = (*env)->GetArrayLength(env, value);
    char *text = to_c(env, path), *named = text == NULL ? NULL : to_c(env, name), *bytes = malloc((size_t)length + 1);
    if (text != NULL && named != NULL && bytes != NULL) {
        (*env)->GetByteArrayRegion(env, value, 0, length, (jbyte *)bytes);
        checked(env, bivouac_setxattr(OF(deployment), text, named, bytes, (size_t)length, flags));
    }
    free(text);
    free(named);
    free(bytes);
}

NATIVE(void, removexattr)(JNIEnv *env, jclass class, jlong deployment, jstring path, jstring name)
{
    (void)class;
    char *named = to_c(env, name);
    if (named == NULL)
        return;
    WITH(path, bivouac_removexattr(OF(deployment), text, named))
    free(named);
}

NATIVE(jobjectArray, listxattr)(JNIEnv *env, jclass class, jlong deployment, jstring path)
{
    (void)class;
    enum { MOST = 64 << 10 };
    char *text = to_c(env, path), *names = malloc(MOST);
    jobjectArray array = NULL;
    if (text != NULL) {
        ssize_t length = names == NULL ? -ENOMEM : bivouac_listxattr(OF(deployment), text, names, MOST);
        if (checked(env, length) >= 0) {
            jsize count = 0;
            for (ssize_t i = 0; i < length; i++)
                count += names[i] == 0;
            array = (*env)->NewObjectArray(env, count, (*env)->FindClass(env, "java/lang/String"), NULL);
            const char *at = names;
            for (jsize i = 0; array != NULL && i < count; i++) {
                jstring name = to_java(env, at, strlen(at));
                (*env)->SetObjectArrayElement(env, array, i, name);
                (*env)->DeleteLocalRef(env, name);
                at += strlen(at) + 1;
            }
        }
    }
    free(text);
    free(names);
    return array;
}

NATIVE(void, mkdir)(JNIEnv *env, jclass class, jlong deployment, jstring path, jint mode)
{
    (void)class;
    WITH(path, bivouac_mkdir(OF(deployment), text, (mode_t)mode))
}

NATIVE(void, rmdir)(JNIEnv *env, jclass class, jlong deployment, jstring path)
{
    (void)class;
    WITH(path, bivouac_rmdir(OF(deployment), text))
}

NATIVE(void, unlink)(JNIEnv *env, jclass class, jlong deployment, jstring path)
{
    (void)class;
    WITH(path, bivouac_unlink(OF(deployment), text))
}

NATIVE(void, rename)(JNIEnv *env, jclass class, jlong deployment, jstring from, jstring to, jint flags)
{
    (void)class;
    char *target = to_c(env, to);
    if (target == NULL)
        return;
    WITH(from, bivouac_rename(OF(deployment), text, target, (unsigned)flags))
    free(target);
}

NATIVE(void, symlink)(JNIEnv *env, jclass class, jlong deployment, jstring target, jstring path)
{
    (void)class;
    char *to = to_c(env, target);
    if (to == NULL)
        return;
    WITH(path, bivouac_symlink(OF(deployment), to, text))
    free(to);
}

NATIVE(jstring, readlink)(JNIEnv *env, jclass class, jlong deployment, jstring path)
{
    (void)class;
    char target[4097];
    char *text = to_c(env, path);
    if (text == NULL)
        return NULL;
    ssize_t length = bivouac_readlink(OF(deployment), text, target, sizeof target - 1);
    free(text);
    if (checked(env, length) < 0)
        return NULL;
    target[length] = 0;
    return to_java(env, target, (size_t)length);
}

NATIVE(jlong, opendir)(JNIEnv *env, jclass class, jlong deployment, jstring path)
{
    (void)class;
    bivouac_dir_t *directory = NULL;
    WITH(path, bivouac_opendir(OF(deployment), text, &directory))
    return (jlong)(intptr_t)directory;
}

NATIVE(jint, readdir)(JNIEnv *env, jclass class, jlong directory, jobjectArray names, jlongArray attributes)
{
    (void)class;
    jsize most = (*env)->GetArrayLength(env, names);
    struct bivouac_entry *entries = malloc((size_t)most * sizeof *entries);
    if (entries == NULL) {
        raise_errno(env, ENOMEM, "no memory is left");
        return -1;
    }
    ssize_t count = bivouac_readdir(OF(directory), entries, (size_t)most);
    checked(env, count);
    for (ssize_t i = 0; i < count; i++) {
        jlong numbers[ATTRIBUTES];
        jstring name = to_java(env, entries[i].name, strlen(entries[i].name));
        if (name == NULL)
            break;
        (*env)->SetObjectArrayElement(env, names, (jsize)i, name);
        (*env)->DeleteLocalRef(env, name);
        shown(&entries[i].attributes, numbers);
        (*env)->SetLongArrayRegion(env, attributes, (jsize)i * ATTRIBUTES, ATTRIBUTES, numbers);
    }
    free(entries);
    return (jint)count;
}

NATIVE(void, closedir)(JNIEnv *env, jclass class, jlong directory)
{
    (void)env, (void)class;
    bivouac_closedir(OF(directory));
}

NATIVE(jlongArray, locate)
(JNIEnv *env, jclass class, jlong deployment, jstring path, jlong offset, jlong length, jobject hosts)
{
    (void)class;
    struct bivouac_location *found = NULL;
    size_t count = 0;
    char *text = to_c(env, path);
    if (text == NULL)
        return NULL;
    int result = bivouac_locate(OF(deployment), text, offset, length, &found, &count);
    free(text);
    if (checked(env, result) < 0)
        return NULL;
    jlongArray array = (*env)->NewLongArray(env, (jsize)(3 * count));
    for (size_t i = 0; array != NULL && i < count; i++) {
        jlong numbers[] = {(jlong)found[i].offset, (jlong)found[i].length, found[i].hosts};
        (*env)->SetLongArrayRegion(env, array, (jsize)(3 * i), 3, numbers);
        for (uint32_t k = 0; k < found[i].hosts; k++) {
            jstring host = to_java(env, found[i].host[k], strlen(found[i].host[k]));
            (*env)->CallBooleanMethod(env, hosts, list_add, host);
            (*env)->DeleteLocalRef(env, host);
        }
    }
    bivouac_free(found);
    return array;
}

NATIVE(jint, user)(JNIEnv *env, jclass class)
{
    (void)env, (void)class;
    return (jint)getuid();
}

/* Memory for an entry of the user database. */
enum { ENTRY = 64 << 10 };

NATIVE(jstring, userName)(JNIEnv *env, jclass class, jint user)
{
    (void)class;
    struct passwd entry, *found = NULL;
    char *memory = malloc(ENTRY);
    jstring name = NULL;
    if (memory != NULL && getpwuid_r((uid_t)user, &entry, memory, ENTRY, &found) == 0 && found != NULL)
        name = to_java(env, found->pw_name, strlen(found->pw_name));
    free(memory);
    return name;
}

NATIVE(jstring, groupName)(JNIEnv *env, jclass class, jint group)
{
    (void)class;
    struct group entry, *found = NULL;
    char *memory = malloc(ENTRY);
    jstring name = NULL;
    if (memory != NULL && getgrgid_r((gid_t)group, &entry, memory, ENTRY, &found) == 0 && found != NULL)
        name = to_java(env, found->gr_name, strlen(found->gr_name));
    free(memory);
    return name;
}

NATIVE(jint, userNumber)(JNIEnv *env, jclass class, jstring name)
{
    (void)class;
    struct passwd entry, *found = NULL;
    char *memory = malloc(ENTRY), *text = to_c(env, name);
    jint number = -1;
    if (memory != NULL && text != NULL && getpwnam_r(text, &entry, memory, ENTRY, &found) == 0 && found != NULL)
        number = (jint)found->pw_uid;
    free(memory);
    free(text);
    return number;
}

NATIVE(jint, groupNumber)(JNIEnv *env, jclass class, jstring name)
{
    (void)class;
    struct group entry, *found = NULL;
    char *memory = malloc(ENTRY), *text = to_c(env, name);
    jint number = -1;
    if (memory != NULL && text != NULL && getgrnam_r(text, &entry, memory, ENTRY, &found) == 0 && found != NULL)
        number = (jint)found->gr_gid;
    free(memory);
    free(text);
    return number;
}
