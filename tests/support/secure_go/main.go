// Produces over TLS with a login, with franz-go or Sarama, until standard input ends: fresh connections for every few records.
// Arguments: library, bootstrap, CA file, certificate file ("" for none), key file, mechanism, user, password, topic.
// Prints {"sent": n, "failed": ["..."]}.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	franzscram "github.com/twmb/franz-go/pkg/sasl/scram"
	"github.com/xdg-go/scram"
)

const recordsPerConnection = 10
const patience = 60 * time.Second

type settings struct {
	library, bootstrap, mechanism, user, password, topic string
	tls                                                   *tls.Config
}

func main() {
	one := settings{library: os.Args[1], bootstrap: os.Args[2], mechanism: os.Args[6], user: os.Args[7], password: os.Args[8], topic: os.Args[9]}
	one.tls = config(os.Args[3], os.Args[4], os.Args[5])
	var over atomic.Bool
	go func() {
		io.Copy(io.Discard, os.Stdin)
		over.Store(true)
	}()
	sent := 0
	failed := []string{}
	for first := true; first || !over.Load(); first = false {
		count, err := round(one)
		sent += count
		if err != nil {
			failed = append(failed, err.Error())
			time.Sleep(100 * time.Millisecond)
		}
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{"sent": sent, "failed": failed})
}

func config(ca, certificate, key string) *tls.Config {
	pem, err := os.ReadFile(ca)
	if err != nil {
		panic(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	made := &tls.Config{RootCAs: pool}
	if certificate != "" {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			panic(err)
		}
		made.Certificates = []tls.Certificate{pair}
	}
	return made
}

func round(one settings) (int, error) {
	if one.library == "sarama" {
		return saramaRound(one)
	}
	return franzRound(one)
}

func franzRound(one settings) (int, error) {
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(one.bootstrap, ",")...), kgo.DialTLSConfig(one.tls), kgo.DefaultProduceTopic(one.topic)}
	var login sasl.Mechanism
	switch one.mechanism {
	case "PLAIN":
		login = plain.Auth{User: one.user, Pass: one.password}.AsMechanism()
	case "SCRAM-SHA-256":
		login = franzscram.Auth{User: one.user, Pass: one.password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		login = franzscram.Auth{User: one.user, Pass: one.password}.AsSha512Mechanism()
	case "OAUTHBEARER":
		login = oauth.Auth{Token: one.password}.AsMechanism()
	}
	if login != nil {
		options = append(options, kgo.SASL(login))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for number := 0; number < recordsPerConnection; number++ {
		if err := client.ProduceSync(ctx, kgo.StringRecord(fmt.Sprint(number))).FirstErr(); err != nil {
			return number, err
		}
	}
	return recordsPerConnection, nil
}

type tokens string

func (token tokens) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(token)}, nil
}

type scramClient struct {
	generate     scram.HashGeneratorFcn
	conversation *scram.ClientConversation
}

func (client *scramClient) Begin(user, password, authz string) error {
	made, err := client.generate.NewClient(user, password, authz)
	if err == nil {
		client.conversation = made.NewConversation()
	}
	return err
}

func (client *scramClient) Step(challenge string) (string, error) { return client.conversation.Step(challenge) }
func (client *scramClient) Done() bool                            { return client.conversation.Done() }

func saramaRound(one settings) (int, error) {
	made := sarama.NewConfig()
	made.Version = sarama.V3_6_0_0
	made.Producer.Return.Successes = true
	made.Producer.RequiredAcks = sarama.WaitForAll
	made.Net.TLS.Enable = true
	made.Net.TLS.Config = one.tls
	if one.mechanism != "" {
		made.Net.SASL.Enable = true
		made.Net.SASL.Mechanism = sarama.SASLMechanism(one.mechanism)
		made.Net.SASL.User, made.Net.SASL.Password = one.user, one.password
		made.Net.SASL.TokenProvider = tokens(one.password)
		made.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient {
			if one.mechanism == "SCRAM-SHA-256" {
				return &scramClient{generate: func() hash.Hash { return sha256.New() }}
			}
			return &scramClient{generate: func() hash.Hash { return sha512.New() }}
		}
	}
	producer, err := sarama.NewSyncProducer(strings.Split(one.bootstrap, ","), made)
	if err != nil {
		return 0, err
	}
	defer producer.Close()
	for number := 0; number < recordsPerConnection; number++ {
		message := &sarama.ProducerMessage{Topic: one.topic, Value: sarama.StringEncoder(fmt.Sprint(number))}
		if _, _, err := producer.SendMessage(message); err != nil {
			return number, err
		}
	}
	return recordsPerConnection, nil
}
