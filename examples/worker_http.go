// A worker in Go, with its standard library alone:
//
//	go run examples/worker_http.go http://127.0.0.1:2223 jobs [COUNT]
//
// It prints each item; put the work in its place. Set STANIEL_TOKEN to a user's token where there are users.
package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log"
	"math"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"
)

type item struct {
	Token, Data, Encoding string
	Deliveries            int
}

var client = http.Client{Timeout: time.Minute}

// ask posts a request, and decodes its answer into answer.
func ask(url string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	post, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	post.Header.Set("Content-Type", "application/json")
	if token := os.Getenv("STANIEL_TOKEN"); token != "" {
		post.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(post)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// untilAnswered asks again until there is an answer: what was reserved meanwhile comes back by itself, and a second
// confirmation of the same token does no harm.
func untilAnswered(url string, request, answer any) {
	for err := ask(url, request, answer); err != nil; err = ask(url, request, answer) {
		log.Print(err)
		time.Sleep(time.Second)
	}
}

func payload(got item) ([]byte, error) {
	if got.Encoding == "base64" {
		return base64.StdEncoding.DecodeString(got.Data)
	}
	return []byte(got.Data), nil
}

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: worker_http URL QUEUE [COUNT]")
	}
	queue := os.Args[1] + "/api/queues/" + url.PathEscape(os.Args[2])
	left := math.MaxInt
	if len(os.Args) > 3 {
		var err error
		if left, err = strconv.Atoi(os.Args[3]); err != nil {
			log.Fatal(err)
		}
	}
	for left > 0 {
		var reserved struct{ Items []item }
		untilAnswered(queue+"/reserve", map[string]int{"wait_ms": 20000, "timeout_ms": 60000}, &reserved)
		for _, got := range reserved.Items {
			data, err := payload(got)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Printf("%s\n", data) // the work; Deliveries above 1 say that somebody may have begun it before
			var confirmed struct {
				Done int
				Gone []string
			}
			untilAnswered(queue+"/reserved/confirm", map[string][]string{"tokens": {got.Token}}, &confirmed)
			for range confirmed.Gone {
				log.Print("an item had timed out before it was confirmed: it may be done twice")
			}
			left--
		}
	}
}
