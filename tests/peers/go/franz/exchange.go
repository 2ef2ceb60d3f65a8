package main

import (
	"context"
	"errors"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"odradek.io/tests/peers/go/task"
)

var refusals = task.Refusals{
	"SASL_AUTHENTICATION_FAILED": kerr.SaslAuthenticationFailed,
	"TOPIC_AUTHORIZATION_FAILED": kerr.TopicAuthorizationFailed,
	"GROUP_AUTHORIZATION_FAILED": kerr.GroupAuthorizationFailed,
	errChallenged.Error():        errChallenged,
}

// errChallenged has the text of an error that the oauth package does not export. A refused token is
// answered by a challenge (RFC 7628), which that package does not answer.
var errChallenged = errors.New("unexpected data in oauth response")

// exchange writes as one client and reads as another.
func exchange(e task.Exchange) ([]string, error) {
	until, end := context.WithTimeout(context.Background(), task.Patience)
	defer end()
	producer := task.Must(kgo.NewClient(secured(e)...))
	defer producer.Close()
	// Records would wait for somebody to mend a wrong password.
	if err := producer.Ping(until); err != nil {
		if strings.Contains(err.Error(), errChallenged.Error()) {
			return nil, errChallenged
		}
		return nil, err
	}
	batch := []*kgo.Record{}
	for number := 0; number < e.Count; number++ {
		batch = append(batch, &kgo.Record{Topic: e.Topic, Value: []byte(task.Value(number))})
	}
	if err := producer.ProduceSync(until, batch...).FirstErr(); err != nil {
		return nil, err
	}
	consumer := task.Must(kgo.NewClient(secured(e,
		kgo.ConsumerGroup(e.Group), kgo.ConsumeTopics(e.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...))
	defer consumer.Close()
	found := []string{}
	for len(found) < e.Count {
		fetched := consumer.PollFetches(until)
		if err := fetched.Err(); err != nil {
			return nil, err
		}
		fetched.EachRecord(func(one *kgo.Record) { found = append(found, string(one.Value)) })
	}
	return found, nil
}

func secured(e task.Exchange, options ...kgo.Opt) []kgo.Opt {
	options = append(options, kgo.SeedBrokers(e.Bootstrap...), kgo.DialTLSConfig(e.TLS()))
	if e.Mechanism != "" {
		options = append(options, kgo.SASL(mechanism(e)))
	}
	return options
}

func mechanism(e task.Exchange) sasl.Mechanism {
	switch e.Mechanism {
	case "PLAIN":
		return plain.Auth{User: e.User, Pass: e.Password}.AsMechanism()
	case "OAUTHBEARER":
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			return oauth.Auth{Token: e.Password}, nil
		})
	case "SCRAM-SHA-256":
		return scram.Auth{User: e.User, Pass: e.Password}.AsSha256Mechanism()
	default:
		return scram.Auth{User: e.User, Pass: e.Password}.AsSha512Mechanism()
	}
}
