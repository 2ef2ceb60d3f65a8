package task

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Exchange is what one user does: write numbered values to a topic and read them with a group.
type Exchange struct {
	Bootstrap   []string `json:"bootstrap"`
	Topic       string   `json:"topic"`
	Group       string   `json:"group"`
	Count       int      `json:"count"`
	Mechanism   string   `json:"mechanism"`
	User        string   `json:"user"`
	Password    string   `json:"password"`
	Authority   string   `json:"authority"`
	Certificate string   `json:"certificate"`
	Key         string   `json:"key"`
}

// Outcome is what was read, or the error code for which the brokers refused something.
type Outcome struct {
	Read    []string `json:"read"`
	Refused string   `json:"refused"`
}

// Refusals are the errors by which a client tells error codes.
type Refusals map[string]error

// Value is one of those to write.
func Value(number int) string { return fmt.Sprintf("value %d", number) }

// TLS is what to show and whom to trust. Files without a name are none.
func (e Exchange) TLS() *tls.Config {
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(Must(os.ReadFile(e.Authority))) {
		Check(errors.New("no certificate in " + e.Authority))
	}
	config := &tls.Config{RootCAs: trusted}
	if e.Certificate != "" {
		own := Must(tls.LoadX509KeyPair(e.Certificate, e.Key))
		config.Certificates = []tls.Certificate{own}
	}
	return config
}

// exchangeAll does what stdin asks for, one after the other, and tells the outcomes on stdout.
func exchangeAll(exchange func(Exchange) ([]string, error), refusals Refusals) {
	var asked []Exchange
	Check(json.NewDecoder(os.Stdin).Decode(&asked))
	outcomes := []Outcome{}
	for _, one := range asked {
		values, err := exchange(one)
		outcomes = append(outcomes, Outcome{Read: values, Refused: refusals.name(err)})
	}
	Check(json.NewEncoder(os.Stdout).Encode(outcomes))
}

// name ends the program on an error that is no refusal.
func (r Refusals) name(err error) string {
	names := []string{}
	for name, refusal := range r {
		if errors.Is(err, refusal) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		Check(err)
	}
	return strings.Join(names, " ")
}
