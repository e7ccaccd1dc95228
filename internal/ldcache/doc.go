// Package ldcache reads and writes /etc/ld.so.cache, in which glibc's loader looks up libraries
// before it searches directories, and which ldconfig -p prints.
//
// What it reads may come from anybody: it is bounded, and nothing in it is trusted. It knows no
// files, only bytes.
package ldcache
