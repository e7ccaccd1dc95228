// Package cdi loads generated specs with the versions of the CDI library that current and older container runtimes
// contain.
package cdi
