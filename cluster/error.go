package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode"
)

// errorMessageLimit bounds the part of an error response that is included in errors, in bytes.
const errorMessageLimit = 1000

// ErrNotFound means that an object does not exist.
var ErrNotFound = errors.New("not found")

// responseError is an error response of the API server.
type responseError struct {
	code    int
	message string
	reason  string  // machine-readable
	causes  []cause // fields of an invalid object
}

// cause is an invalid field of an object.
type cause struct {
	Field   string `json:"field"` // "spec.devices[3].name"
	Message string `json:"message"`
}

// newResponseError returns the error for a status code and a body, which usually is a Status object.
func newResponseError(code int, body []byte) *responseError {
	e := &responseError{code: code, message: errorMessage(body)}
	var status struct {
		Reason  string `json:"reason"`
		Details struct {
			Causes []cause `json:"causes"`
		} `json:"details"`
	}
	if json.Unmarshal(body, &status) == nil {
		e.reason, e.causes = status.Reason, status.Details.Causes
	}
	return e
}

// errorMessage returns the message of a Status object, or the whole body if it is not one, truncated to
// errorMessageLimit.
func errorMessage(body []byte) string {
	var object struct {
		Message string `json:"message"`
	}
	text := string(body)
	if json.Unmarshal(body, &object) == nil && object.Message != "" {
		text = object.Message
	}
	return truncate(text, errorMessageLimit)
}

// truncate returns the first bytes of a text, up to a limit, on one line and without invalid or incomplete characters.
func truncate(text string, limit int) string {
	printable := func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}
	text = strings.ToValidUTF8(text[:min(len(text), limit)], "")
	return strings.TrimSpace(strings.Map(printable, text))
}

func (e *responseError) Error() string {
	return fmt.Sprintf("API server returned %d: %s", e.code, e.message)
}

// Is matches ErrNotFound if an object does not exist, and ErrAlreadyExists if it already exists. A 404 for a path that
// the API server does not serve, such as the path of a disabled API group, does not match: the response has no reason.
func (e *responseError) Is(target error) bool {
	return target == ErrNotFound && e.code == http.StatusNotFound && e.reason == "NotFound" ||
		target == ErrAlreadyExists && e.code == http.StatusConflict && e.reason == "AlreadyExists"
}

// refused reports whether a retry of the same request is useless.
func (e *responseError) refused() bool {
	return e.code != http.StatusTooManyRequests && e.code < 500
}

// Refused reports whether the API server refused the request, for example because of missing permissions. A retry of
// the same request is useless until the cause is gone. Status codes 429 and 5xx are temporary failures, not refusals.
func Refused(err error) bool {
	var response *responseError
	return errors.As(err, &response) && response.refused()
}

// statusCode returns the status code of an error response, and 0 if there was no response.
func statusCode(err error) int {
	var response *responseError
	if errors.As(err, &response) {
		return response.code
	}
	return 0
}
