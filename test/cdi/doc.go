// Package cdi reads the generated specs with the versions of the CDI library
// that the container runtimes of today and of some years ago have built in.
package cdi
