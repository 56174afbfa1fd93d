module github.com/pagedllm/pagedllm/tests/bindings/answers/go

go 1.23

require github.com/pagedllm/pagedllm/bindings/go v0.0.0

replace github.com/pagedllm/pagedllm/bindings/go => ../../../../bindings/go
