module github.com/gpucdi/gpucdi/test/cdi/load

go 1.26.0
