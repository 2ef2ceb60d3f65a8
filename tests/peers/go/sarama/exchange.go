package main

import (
	"context"
	"errors"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"

	"odradek.io/tests/peers/go/task"
)

var refusals = task.Refusals{
	"SASL_AUTHENTICATION_FAILED": sarama.ErrSASLAuthenticationFailed,
	"TOPIC_AUTHORIZATION_FAILED": sarama.ErrTopicAuthorizationFailed,
	"GROUP_AUTHORIZATION_FAILED": sarama.ErrGroupAuthorizationFailed,
}

// exchange writes as one client and reads as another.
func exchange(e task.Exchange) ([]string, error) {
	config := secured(e)
	producer, err := sarama.NewSyncProducer(e.Bootstrap, config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	messages := []*sarama.ProducerMessage{}
	for number := 0; number < e.Count; number++ {
		value := sarama.StringEncoder(task.Value(number))
		messages = append(messages, &sarama.ProducerMessage{Topic: e.Topic, Value: value})
	}
	if err := producer.SendMessages(messages); err != nil {
		var all sarama.ProducerErrors
		if errors.As(err, &all) {
			return nil, all[0].Err
		}
		return nil, err
	}
	group, err := sarama.NewConsumerGroup(e.Bootstrap, e.Group, config)
	if err != nil {
		return nil, err
	}
	defer group.Close()
	return readAll(group, e)
}

func readAll(group sarama.ConsumerGroup, e task.Exchange) ([]string, error) {
	until, end := context.WithTimeout(context.Background(), task.Patience)
	defer end()
	reader := member{make(chan task.Record, e.Count), false}
	failed := make(chan error, 1)
	go func() {
		for until.Err() == nil {
			if err := group.Consume(until, []string{e.Topic}, reader); err != nil {
				failed <- err
				return
			}
		}
	}()
	values := []string{}
	for len(values) < e.Count {
		select {
		case one := <-reader.found:
			values = append(values, *one.Value)
		case err := <-failed:
			return nil, err
		case <-until.Done():
			return nil, until.Err()
		}
	}
	return values, nil
}

func secured(e task.Exchange) *sarama.Config {
	config := settings()
	config.Consumer.Offsets.AutoCommit.Enable = true
	// What is refused is as wrong the next time.
	config.Metadata.Retry.Max = 3
	config.Consumer.Group.Rebalance.Retry.Backoff = 100 * time.Millisecond
	config.Net.TLS.Enable = true
	config.Net.TLS.Config = e.TLS()
	if e.Mechanism != "" {
		config.Net.SASL.Enable = true
		config.Net.SASL.Mechanism = sarama.SASLMechanism(e.Mechanism)
		config.Net.SASL.User = e.User
		config.Net.SASL.Password = e.Password
		config.Net.SASL.TokenProvider = token(e.Password)
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient {
			return &conversation{digest: digests[e.Mechanism]}
		}
	}
	return config
}

var digests = map[string]scram.HashGeneratorFcn{
	"SCRAM-SHA-256": scram.SHA256,
	"SCRAM-SHA-512": scram.SHA512,
}

// token is one that somebody else got.
type token string

func (t token) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(t)}, nil
}

// conversation is what sarama leaves to its users.
type conversation struct {
	digest scram.HashGeneratorFcn
	*scram.ClientConversation
}

func (c *conversation) Begin(user, password, authorized string) error {
	client, err := c.digest.NewClient(user, password, authorized)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}
