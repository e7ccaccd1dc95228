// Package ldcache parses and encodes /etc/ld.so.cache, the cache that glibc's dynamic loader uses to find libraries and
// that ldconfig -p prints.
//
// The input is untrusted, so the parser bounds its time and memory. The package does no I/O.
package ldcache
