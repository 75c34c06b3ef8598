#!/bin/sh
# check_symbols.sh libftmem.so libftmem.a: the shared library exports ftmem_* and nothing else, the static one defines no
# other global, and neither calls the heap, stdio, the locale or the end of the process.
set -eu
shared=$1 static=$2
failed=0
complain() {
    echo "$1:" >&2
    echo "$2" | sed 's/^/    /' >&2
    failed=1
}

bad=$(nm -D --defined-only "$shared" | awk '{ print $NF }' | sed 's/@.*//' | grep -v '^ftmem_[a-z]' || true)
[ -z "$bad" ] || complain "$shared exports" "$bad"
bad=$(nm -g --defined-only "$static" | awk 'NF == 3 { print $3 }' | grep -v '^ftmem_' || true)
[ -z "$bad" ] || complain "$static defines globals without the prefix" "$bad"

heap='malloc|calloc|realloc|reallocarray|free|aligned_alloc|posix_memalign|strdup|strndup|alloca|qsort'
stdio='[a-z]*printf|_*[a-z]*printf_chk|puts|putchar|fopen|fread|fwrite|fputs|fputc|std(in|out|err)|[a-z]*scanf|open|read|write|getenv'
locale='setlocale|localeconv|strto[a-z]+|ato[a-z]+|is(alpha|digit|space|alnum|upper|lower)|to(upper|lower)|__ctype_[a-z_]+|strcoll|strcasecmp|strncasecmp'
process='abort|exit|_exit|raise|signal|__assert_fail|time|rand|srand|strtok|strerror|__errno_location'
for file in "$shared" "$static"; do
    case $file in *.so*) dynamic=-D ;; *) dynamic= ;; esac
    bad=$(nm $dynamic --undefined-only "$file" | awk 'NF >= 2 { print $NF }' | sed 's/@.*//' | grep -Ex "(__isoc[0-9]+_)?($heap|$stdio|$locale|$process)" | sort -u || true)
    [ -z "$bad" ] || complain "$file calls" "$bad"
done
[ $failed = 0 ] && echo "symbols: $(nm -D --defined-only "$shared" | wc -l) exports, all ftmem_*"
exit $failed
