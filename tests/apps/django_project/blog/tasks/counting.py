from django_project.blog.models import Article
from django_project.decorator import task


@task
async def count_words(article_id: int) -> int:
    article = await Article.objects.aget(pk=article_id)
    article.words = len(article.text.split())
    await article.asave()
    return article.words
